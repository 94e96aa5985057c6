// octet explains itself, and refuses what it does not know with a hint.
#include "cli/run.h"

namespace octet {

TEST(Help, ListsEveryCommand) {
  const Ran r = octet_says({"help"});
  expect_done(
      r, {"train", "plan", "tokenizer", "tokenize", "import", "export", "inspect", "verify", "bench", "Exit codes"});
  EXPECT_EQ(octet_says({"--help"}).out, r.out);
  EXPECT_EQ(octet_says({}).err, r.out);
  EXPECT_EQ(octet_says({}).code, 2);
}

TEST(Help, ItsFirstExampleRunsAsPrinted) {
  const Scratch folder;
  for (const char* name : {"text", "configs"}) std::filesystem::create_directory(folder / name);
  for (const char* name : {"text/a.txt", "more.txt"}) folder.write(name, read_file(small_text()));
  json config = read_json(CONFIGS "/tiny_llama.json");
  config["training"]["steps"] = 2;
  folder.write("configs/tiny_llama.json", config.dump());
  const std::string help = octet_says({"help"}).out, title = "From text to a model:\n";
  const size_t begin = help.find(title) + title.size();
  const std::string lines = help.substr(begin, help.find("\n\n", begin) - begin);
  const Ran r = run({"sh", "-ec", "cd " + (folder / "").string() + "\noctet() { " OCTET_BINARY " \"$@\"; }\n" + lines});
  EXPECT_EQ(r.code, 0) << r;
  EXPECT_TRUE(std::filesystem::exists(folder / "out/hf/model.safetensors")) << r;
}

TEST(Help, OfACommandShowsOptionsDefaultsAndExamples) {
  const Ran r = octet_says({"help", "tokenizer"});
  expect_done(r, {"usage: octet tokenizer", "--vocab-size N", "(default 32000)", "  octet tokenizer --input"});
  EXPECT_EQ(octet_says({"tokenizer", "--help"}).out, r.out);
}

TEST(Help, OfEveryCommandShowsAnExample) {
  const std::string general = octet_says({"help"}).out;
  std::istringstream lines(general.substr(general.find("usage:")));
  int commands = 0;
  for (std::string line; std::getline(lines, line) && !has(line, "From text");) {
    if (!line.starts_with("  ")) continue;
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    SCOPED_TRACE(name);
    expect_done(octet_says({"help", name}), {"usage: octet " + name + " ", "octet " + name + " "});
    const std::string said = octet_says({"help", name}).out;
    EXPECT_TRUE(has(said, "\n  octet " + name + " ") || has(said, "\n  mpirun") || has(said, "(octet " + name)) << said;
    ++commands;
  }
  EXPECT_GE(commands, 11);
}

TEST(Help, ListsTheOptionsOfAllCommands) {
  const Ran r = octet_says({"help", "options"});
  expect_done(r, {"--max-shard-size SIZE", "(default 5GB)"});
  for (const char* line :
       {"\ntokenize    --decode", "\nexport      --dtype", "\ninspect     --diff", "\nverify      --json"})
    EXPECT_TRUE(has(r.out, line)) << line << "\n" << r;
}

TEST(Help, OfTheConfigListsOptions) {
  expect_done(octet_says({"help", "config"}), {"training.steps", "optimizer.beta2", "model.preset"});
  const Ran one = octet_says({"help", "config", "optimizer"});
  expect_done(one, {"optimizer.beta2 = 0.95"});
  EXPECT_FALSE(has(one.out, "training.steps")) << one;
  expect_refused(octet_says({"help", "config", "optimiser"}), {"optimiser", "did you mean", "optimizer"});
}

TEST(Help, Version) { expect_done(octet_says({"--version"}), {"octet "}); }

TEST(Help, AFullDiskIsNoSuccess) {
  const Ran r = run({"sh", "-c", OCTET_BINARY " help > /dev/full"});
  EXPECT_EQ(r.code, 3) << r;
  EXPECT_TRUE(has(r.err, "standard output")) << r;
}

TEST(CommandLine, UnknownCommandsAndOptionsAreRefusedWithASuggestion) {
  expect_refused(octet_says({"version"}), {"unknown command version", "did you mean --version?"});
  expect_refused(octet_says({"trian"}), {"unknown command trian", "did you mean", "train", "octet help"});
  expect_refused(octet_says({"help", "verfy"}), {"verfy", "did you mean", "verify"});
  expect_refused(octet_says({"train", "c.json", "--resum", "auto"}),
                 {"unknown option --resum", "did you mean", "--resume", "octet help train"});
  expect_refused(octet_says({"bench", "-x"}), {"unknown option -x", "octet help bench"});
}

TEST(CommandLine, MissingAndMistypedValuesAreRefused) {
  expect_refused(octet_says({"train", "c.json", "--resume"}), {"--resume needs a value", "octet help train"});
  expect_refused(octet_says({"train", "--resume", "--dry-run", "c.json"}), {"--resume needs a value"});
  expect_refused(octet_says({"train", "c.json", "--dry-run=yes"}), {"--dry-run=yes", "takes no value"});
  expect_refused(octet_says({"train"}), {"give one config file", "usage: octet train CONFIG.json"});
  expect_refused(octet_says({"tokenize", "--tokenizer", "t", "--out", "o"}), {"--input is missing"});
  expect_refused(octet_says({"tokenizer", "--input", "x", "--out", "o", "--vocab-size", "many"}),
                 {"--vocab-size many", "whole number"});
  expect_refused(octet_says({"tokenizer", "more", "--input", "x", "--out", "o"}), {"unexpected word", "more"});
  expect_refused(octet_says({"bench", CONFIGS "/tiny_llama.json", "--steps", "0"}), {"--steps 0", "from 1 to"});
}

}  // namespace octet
