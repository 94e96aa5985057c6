// Command lines, parsed by cxxopts; messages name the option and the command whose help explains it.
#include <charconv>
#include <cmath>
#include <cxxopts.hpp>

#include "base/json.h"
#include "cli/command.h"

namespace octet {
namespace {

// "--input a b" as "--input=a --input=b": cxxopts gives an option one word.
std::vector<std::string> spread_repeated(const Command& command, const std::vector<std::string>& words) {
  std::vector<std::string> out;
  std::string open;  // the option that takes the next words
  bool took = false;
  for (const std::string& word : words) {
    if (word.size() > 1 && word[0] == '-') {
      if (!open.empty() && !took) out.push_back(open);  // without a value: cxxopts says so
      open.clear();
      for (const OptionSpec& o : command.options)
        if (o.repeats && word == concat("--", o.name)) open = word;
      took = false;
      if (open.empty()) out.push_back(word);
    } else if (!open.empty()) {
      out.push_back(open + "=" + word);
      took = true;
    } else {
      out.push_back(word);
    }
  }
  if (!open.empty() && !took) out.push_back(open);
  return out;
}

std::vector<std::string> names_of(const Command& command) {
  std::vector<std::string> names;
  for (const OptionSpec& o : command.options) names.push_back(concat("--", o.name));
  return names;
}

}  // namespace

Arguments::Arguments(const Command& command, const std::vector<std::string>& words) : command_(command) {
  cxxopts::Options options(concat("octet ", command.name));
  for (const OptionSpec& o : command.options) {
    if (*o.value) options.add_options()(o.name, o.help, cxxopts::value<std::string>());
    else options.add_options()(o.name, o.help);
  }
  options.allow_unrecognised_options();  // they come back unmatched, with the words of no option
  const std::vector<std::string> spread = spread_repeated(command, words);
  std::vector<const char*> argv{"octet"};
  for (const std::string& word : spread) argv.push_back(word.c_str());
  const cxxopts::ParseResult parsed = options.parse(int(argv.size()), argv.data());
  for (const cxxopts::KeyValue& pair : parsed.arguments()) given_.emplace_back(pair.key(), pair.value());
  for (const std::string& word : parsed.unmatched()) {
    if (word.size() > 1 && word[0] == '-')
      refuse(concat("unknown option ", word, did_you_mean(word.substr(0, word.find('=')), names_of(command))));
    words_.push_back(word);
  }
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

int64_t Arguments::integer(const std::string& option, int64_t least) const {
  const std::string value = text(option);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < least)
    refuse(concat("--", option, " ", value, ": expected a whole number, ", least, " or more"));
  return number;
}

double Arguments::number(const std::string& option) const {
  const std::string value = text(option);
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(number))
    refuse(concat("--", option, " ", value, ": expected a number"));
  return number;
}

void Arguments::expect_words(size_t least, size_t most) const {
  if (words_.size() < least) refuse("something is missing on the command line");
  if (words_.size() > most) refuse("unexpected word on the command line: " + words_[most]);
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
