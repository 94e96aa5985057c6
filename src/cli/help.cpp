// octet help: of the program, of a command, of the options of a config.
#include <algorithm>
#include <cstdio>

#include "base/json.h"
#include "cli/command.h"
#include "config/config.h"

namespace octet {
namespace {

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size() + 2, width), ' ');
  return text;
}

std::string line_of(const OptionSpec& o) {
  return concat(padded(concat("--", o.name, *o.value ? " " : "", o.value), 27), o.help,
                *o.otherwise ? concat(" (default ", o.otherwise, ")") : "");
}

int help_config(const std::string& section) {
  const std::string table = option_table(section);
  if (table.empty()) {
    std::vector<std::string> sections;
    for (const OptionLine& line : all_options()) {
      const std::string own = line.path.substr(0, line.path.find('.'));
      if (sections.empty() || sections.back() != own) sections.push_back(own);
    }
    std::string list;
    for (const std::string& s : sections) list += (list.empty() ? "" : ", ") + s;
    bad_input("no section ", section, did_you_mean(section, sections), "\nSections: ", list);
  }
  std::printf("%s", table.c_str());
  if (section.empty())
    std::printf(
        "\nA config is a JSON file with these sections (comments are allowed); section.key=value on the command line\n"
        "sets one option. Examples: configs/*.json.\n");
  return 0;
}

// Every option of every command, a line each.
int help_options() {
  for (const Command& c : commands())
    for (const OptionSpec& o : c.options) std::printf("%-11s %s\n", c.name, line_of(o).c_str());
  std::printf("\nEvery command also takes --help. For the keys of a config, section.key=value: octet help config.\n");
  return 0;
}

int help(const Arguments& arguments, Host*) {
  arguments.expect_words(0, 2);
  const std::vector<std::string>& words = arguments.words();
  if (words.empty()) {
    std::fputs(general_help().c_str(), stdout);
    return 0;
  }
  if (words[0] == "config") return help_config(words.size() > 1 ? words[1] : "");
  if (words[0] == "options") {
    arguments.expect_words(1, 1);
    return help_options();
  }
  std::vector<std::string> names{"config", "options"};
  for (const Command& command : commands()) {
    names.push_back(command.name);
    if (words[0] != command.name) continue;
    arguments.expect_words(1, 1);
    std::fputs(help_of(command).c_str(), stdout);
    return 0;
  }
  bad_input("no command ", words[0], did_you_mean(words[0], names), "\nSee octet help");
}

}  // namespace

std::string general_help() {
  std::string text =
      "octet pretrains large language models on NVIDIA GPUs or on a CPU.\n\nusage: octet COMMAND ...\n\n";
  for (const Command& c : commands()) text += "  " + padded(c.name, 12) + c.summary + "\n";
  return text +
         "\nFrom text to a model:\n"
         "  octet tokenizer --input text/*.txt --vocab-size 2048 --out tokenizer.model\n"
         "  octet tokenize --tokenizer tokenizer.model --input text/*.txt --out train.tokens\n"
         "  octet train configs/tiny_llama.json data.train=train.tokens data.tokenizer=tokenizer.model \\\n"
         "    data.validation= data.validation_fraction=0.1\n"
         "  octet inspect out/tiny_llama\n"
         "  octet eval out/tiny_llama --data more.txt\n"
         "  octet generate out/tiny_llama --prompt \"Once upon a time\"\n"
         "  octet export out/tiny_llama --out out/hf\n"
         "\n"
         "octet help COMMAND explains a command, with examples; octet help options lists the options of all commands,\n"
         "octet help config the keys of a config. With --json a command prints JSON for programs.\n\n"
         "Exit codes:\n"
         "  0  success\n"
         "  1  a check failed: octet verify found a difference, octet inspect found a wrong checksum, or octet train\n"
         "     skipped training.max_skipped steps in a row, or all its steps\n"
         "  2  the input is wrong; the message says what, where, and what to do\n"
         "  3  a fault of the system: a full disk, no memory, a lost rank; or an internal error of octet\n"
         "  4  octet train saved a checkpoint and stopped on SIGTERM, SIGINT, SIGUSR1 or SIGHUP\n";
}

std::string help_of(const Command& c) {
  std::string text = concat("octet ", c.name, ": ", c.summary, "\n\nusage: octet ", c.name, " ", c.usage, "\n");
  if (!c.options.empty()) text += "\n";
  for (const OptionSpec& o : c.options) text += "  " + line_of(o) + "\n";
  return text + "\n" + c.more;
}

Command help_command() {
  return {.name = "help",
          .usage = "[COMMAND | options | config [SECTION]]",
          .summary = "explain a command, list all options, or list the keys of a config",
          .options = {},
          .more = "  octet help train\n  octet help options\n  octet help config optimizer\n",
          .run = help,
          .runs = Command::Runs::on_rank_0};
}

}  // namespace octet
