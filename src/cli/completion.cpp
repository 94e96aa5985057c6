// octet completion: a shell's completions, made from the tables of commands and options.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <sstream>

#include "cli/command.h"
#include "config/config.h"

namespace octet {
namespace {

// The choices of "auto|cpu|cuda" or "cosine | linear"; a word in capitals stands for something else, and is left out.
std::string choices(std::string text) {
  if (text.find('|') == std::string::npos) return "";
  std::replace(text.begin(), text.end(), '|', ' ');
  std::istringstream words(text);
  std::string all;
  for (std::string word; words >> word;)
    if (!std::isupper(static_cast<unsigned char>(word[0]))) all += (all.empty() ? "" : " ") + word;
  return all;
}

std::string offer(const std::string& words) { return concat("COMPREPLY=($(compgen -W \"", words, "\" -- \"$word\"))"); }

// case lines:   train) … ;;
std::string cases_of_commands() {
  std::string lines;
  for (const Command& c : commands()) {
    std::string names = "--help";
    for (const OptionSpec& o : c.options) names += concat(" --", o.name);
    lines += concat("    ", c.name, ") options=\"", names, "\"");
    if (std::string(c.usage).find("section.key=value") != std::string::npos) lines += " keys=1";
    lines += " ;;\n";
  }
  return lines;
}

std::string cases_of_values() {
  std::string lines;
  for (const Command& c : commands())
    for (const OptionSpec& o : c.options) {
      if (!*o.value) continue;
      const std::string words = choices(o.value);
      lines += concat("    ", c.name, ":--", o.name, ") ", words.empty() ? "" : offer(words) + "; ", "return ;;\n");
    }
  return lines;
}

std::string cases_of_keys() {
  std::string lines;
  for (const OptionLine& o : all_options()) {
    const std::string words = o.type == "true or false" ? "true false" : choices(o.type);
    if (!o.hidden && !words.empty()) lines += concat("      ", o.path, ") ", offer(words), " ;;\n");
  }
  return lines;
}

std::string script() {
  std::string names, keys;
  for (const Command& c : commands()) names += concat(names.empty() ? "" : " ", c.name);
  for (const OptionLine& o : all_options())
    if (!o.hidden) keys += concat(keys.empty() ? "" : " ", o.path, "=");
  return concat("# Completion of octet ", OCTET_VERSION,
                " for bash, made by octet completion bash. Where nothing is known, names of "
                "files are offered.\n"
                "_octet() {\n"
                "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}\n"
                "  local options='' keys=''\n"
                "  COMPREPLY=()\n"
                "  if ((COMP_CWORD == 1)); then ",
                offer(names),
                "; return; fi\n"
                "  case $command in\n",
                cases_of_commands(),
                "  esac\n"
                "  if [[ $command == help ]]; then ",
                offer(names + " config options"),
                "; return; fi\n"
                "  case $command:$before in\n",
                cases_of_values(),
                "  esac\n"
                "  if [[ $word == -* ]]; then COMPREPLY=($(compgen -W \"$options\" -- \"$word\")); return; fi\n"
                "  [[ $keys ]] || return\n"
                "  local key=''  # bash takes training.steps=1 for three words\n"
                "  if [[ $word == '=' ]]; then key=$before word=''; elif [[ $before == '=' ]]; then "
                "key=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
                "  if [[ $key ]]; then\n"
                "    case $key in\n",
                cases_of_keys(),
                "    esac\n"
                "    return\n"
                "  fi\n"
                "  [[ $word ]] || return\n"
                "  COMPREPLY=($(compgen -W \"",
                keys,
                "\" -- \"$word\"))\n"
                "  ((${#COMPREPLY[@]} == 0)) || compopt -o nospace\n"
                "}\n"
                "complete -o default -F _octet octet\n");
}

int run_completion(const Arguments& arguments, Host*) {
  arguments.expect_words(1, 1);
  const std::string shell = arguments.words()[0];
  if (shell != "bash") arguments.refuse(concat("no completion for ", shell, "; there is one for bash"));
  std::fputs(script().c_str(), stdout);
  return 0;
}

}  // namespace

Command completion_command() {
  return {.name = "completion",
          .usage = "bash",
          .summary = "print a shell script that completes commands on Tab",
          .options = {},
          .more =
              "Tab completes commands, options, config keys and their values. For the current shell, and for all\n"
              "later ones (needs the package bash-completion):\n"
              "\n"
              "  source <(octet completion bash)\n"
              "  octet completion bash > ~/.local/share/bash-completion/completions/octet\n",
          .run = run_completion,
          .runs = Command::Runs::on_rank_0};
}

}  // namespace octet
