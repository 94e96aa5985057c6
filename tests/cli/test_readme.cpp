// README.md names only commands, options, keys, configs and scripts that there are.
#include <algorithm>
#include <regex>
#include <set>

#include "cli/run.h"

namespace octet {
namespace {

const std::string kRoot = CONFIGS "/..";

std::vector<std::string> words_of(const std::string& line) {  // up to a comment or a pipe
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word && word[0] != '#' && word != "|";) words.push_back(word);
  return words;
}

std::vector<std::string> commands_of_readme() {  // the lines of its blocks of code
  std::istringstream in(read_file(kRoot + "/README.md"));
  std::vector<std::string> lines;
  bool code = false;
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("```")) code = !code;
    else if (code) lines.push_back(line);
  return lines;
}

std::set<std::string> keys_of_configs() {
  std::istringstream in(octet_says({"help", "config"}).out);
  std::set<std::string> keys;
  const std::regex form("  ([a-z0-9_.]+) = .*");
  std::smatch found;
  for (std::string line; std::getline(in, line);)
    if (std::regex_match(line, found, form)) keys.insert(found[1]);
  return keys;
}

}  // namespace

TEST(Readme, ItsCommandsAreThere) {
  std::set<std::string> options;  // "train --ranks"
  std::istringstream in(octet_says({"help", "options"}).out);
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() > 1) options.insert(words[0] + " " + words[1]);
  }
  const std::set<std::string> keys = keys_of_configs();
  ASSERT_GT(options.size(), 50u);
  ASSERT_GT(keys.size(), 100u);
  std::set<std::string> seen;
  for (const std::string& line : commands_of_readme()) {
    SCOPED_TRACE(line);
    const std::vector<std::string> words = words_of(line);
    const auto at = std::ranges::find(words, "octet");
    for (const std::string& word : words)
      if (word.starts_with("configs/") || word.starts_with("scripts/") || word.starts_with("data/")) {
        EXPECT_TRUE(std::filesystem::exists(kRoot + "/" + word)) << word;
      }
    if (at == words.end() || at + 1 == words.end()) continue;
    const std::string command = at[1];
    seen.insert(command);
    EXPECT_EQ(octet_says({command, "--help"}).code, 0);
    for (auto word = at + 2; word != words.end(); ++word) {
      const std::string name = word->substr(0, word->find('='));
      const bool option = word->starts_with("--");
      EXPECT_TRUE(option ? options.contains(command + " " + name) : name == *word || keys.contains(name)) << name;
    }
  }
  for (const char* command : {"tokenizer", "tokenize", "train", "plan", "inspect", "eval", "generate", "export",
                              "import", "verify", "bench", "help"})
    EXPECT_TRUE(seen.contains(command)) << command;
}

// What needs neither a GPU nor data must do as it is printed: in the README, and in the help of the commands.
TEST(Readme, ItsPlansCanBeMade) {
  std::vector<std::string> lines = commands_of_readme();
  for (const char* command : {"plan", "train"}) {
    std::istringstream help(octet_says({command, "--help"}).out);
    for (std::string line; std::getline(help, line);)
      if (line.starts_with("  octet ")) lines.push_back(line);
  }
  int made = 0;
  for (const std::string& line : lines) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() < 3 || words[0] != "octet") continue;
    if (words[1] != "plan" && std::ranges::find(words, "--dry-run") == words.end()) continue;
    std::string all = OCTET_BINARY;
    for (size_t i = 1; i < words.size(); ++i) all += " " + words[i];
    SCOPED_TRACE(line);
    const bool search = std::ranges::find(words, "--fastest") != words.end();
    const Ran r = run({"sh", "-c", "cd '" + kRoot + "' && " + all});
    expect_done(r, {search ? "memory.recompute_blocks=" : "parameters"});
    EXPECT_FALSE(has(r.out, "none fits")) << r;
    ++made;
  }
  EXPECT_GE(made, 4);
}

TEST(Readme, ItsKeysAndConfigsAreThere) {
  const std::set<std::string> keys = keys_of_configs();
  const std::string text = read_file(kRoot + "/README.md");
  const std::regex key(
      "`((model|data|training|optimizer|schedule|precision|fp8|parallel|memory|checkpoint|log)\\.[a-z0-9_]+)");
  const std::regex config("`((?:tiny_|llama_|llama2_|neox_|mixtral_)[a-z0-9_]+)`");
  int found = 0;
  for (std::sregex_iterator m(text.begin(), text.end(), key), end; m != end; ++m, ++found)
    EXPECT_TRUE(keys.contains((*m)[1])) << (*m)[1];
  EXPECT_GT(found, 10);
  found = 0;
  for (std::sregex_iterator m(text.begin(), text.end(), config), end; m != end; ++m, ++found)
    EXPECT_TRUE(std::filesystem::exists(concat(CONFIGS "/", (*m)[1].str(), ".json"))) << (*m)[1];
  EXPECT_GT(found, 10);
}

}  // namespace octet
