// Command lines: a value is any text, of any length and over several lines (a prompt). Messages name the option and the
// command whose help explains it. Why no library: cxxopts 3.1.1, the project's choice otherwise, overflows the stack at
// a value of 100 kB; built with CXXOPTS_NO_REGEX it reads that, but gives an option one word (of `--prompt a -12` the
// second comes back as the options -1 and -2), takes --json for the value in `--prompt --json`, and takes `-xyz` apart
// before a message can quote it. Settling those three ahead of it is all of what the constructor below does.
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/json.h"
#include "cli/command.h"

namespace octet {
namespace {

// "--name", "--name=value", "-x"; not "-1" or "- an item", which are values.
bool looks_like_option(std::string_view word) {
  return word.size() > 1 && word[0] == '-' && (word[1] == '-' || std::isalpha(uint8_t(word[1])));
}

std::string shortened(const std::string& word) { return word.size() <= 80 ? word : word.substr(0, 80) + "..."; }

}  // namespace

Arguments::Arguments(const Command& command, const std::vector<std::string>& words) : command_(command) {
  const auto find = [&](std::string_view word) -> const OptionSpec* {
    for (const OptionSpec& o : command.options)
      if (word == concat("--", o.name)) return &o;
    return nullptr;
  };
  const OptionSpec* open = nullptr;  // takes the next words, and must take one
  bool took = true;
  const auto give = [&](const OptionSpec& o, const std::string& value) {
    given_.emplace_back(o.name, value);
    took = true;
    if (!o.repeats) open = nullptr;
  };
  const auto close = [&] {
    if (open && !took) refuse(concat("--", open->name, " needs a value: ", open->value));
    open = nullptr;
  };
  for (const std::string& word : words) {
    const size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const OptionSpec* const o = find(word.substr(0, equals));
    if (o) {
      close();
      if (!*o->value && equals != std::string::npos) refuse(concat(word, ": --", o->name, " takes no value"));
      open = *o->value ? o : nullptr;
      took = !open;
      if (!open) given_.emplace_back(o->name, "");
      else if (equals != std::string::npos) give(*o, word.substr(equals + 1));
    } else if (open && (!took || !looks_like_option(word))) {
      give(*open, word);
    } else if (looks_like_option(word)) {
      std::vector<std::string> names;
      for (const OptionSpec& known : command.options) names.push_back(concat("--", known.name));
      refuse(concat("unknown option ", shortened(word), did_you_mean(shortened(word.substr(0, equals)), names)));
    } else {
      words_.push_back(word);
    }
  }
  close();
}

void Arguments::refuse(const std::string& why) const {
  bad_input(why, "\nusage: octet ", command_.name, " ", command_.usage, "\nSee octet help ", command_.name);
}

const OptionSpec& Arguments::spec(const std::string& option) const {
  for (const OptionSpec& o : command_.options)
    if (option == o.name) return o;
  fail(__FILE__, __LINE__, "octet ", command_.name, " has no option --", option);
}

bool Arguments::has(const std::string& option) const {
  spec(option);
  for (const auto& [name, value] : given_)
    if (name == option) return true;
  return false;
}

std::string Arguments::text(const std::string& option) const {
  std::string found = spec(option).otherwise;
  for (const auto& [name, value] : given_)
    if (name == option) found = value;
  return found;
}

std::vector<std::string> Arguments::all(const std::string& option) const {
  spec(option);
  std::vector<std::string> found;
  for (const auto& [name, value] : given_)
    if (name == option) found.push_back(value);
  return found;
}

int64_t Arguments::integer(const std::string& option, int64_t least, int64_t most) const {
  const std::string value = text(option);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < least || number > most)
    refuse(concat("--", option, " ", shortened(value), ": expected a whole number, ",
                  most == INT64_MAX ? concat(least, " or more") : concat("from ", least, " to ", most)));
  return number;
}

double Arguments::number(const std::string& option) const {
  const std::string value = text(option);
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(number))
    refuse(concat("--", option, " ", shortened(value), ": expected a number"));
  return number;
}

void Arguments::expect_words(size_t least, size_t most) const {
  if (words_.size() < least) refuse("something is missing on the command line");
  if (words_.size() > most) refuse("unexpected word on the command line: " + shortened(words_[most]));
}

Words split_changes(const std::vector<std::string>& words) {
  Words out;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    const bool change = equals != std::string::npos && equals > 0 && word.find('/') > equals;
    if (change) {
      out.changes.push_back(word);
    } else {
      if (!out.changes.empty())
        bad_input("command line: \"", word, "\": expected section.key=value, for example training.steps=100");
      out.leading.push_back(word);
    }
  }
  return out;
}

}  // namespace octet
