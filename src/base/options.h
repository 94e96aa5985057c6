#pragma once
// Options of a run. Each is declared once, as a member of a Section, with its name, default, help text and limits, and
// is used as the value itself:
//   struct TrainingConfig : Section {
//     TrainingConfig() : Section("training") {}
//     Option<int64_t> steps{this, "steps", 0, "optimizer steps of the run", at_least(0)};
//   };
//   for (int64_t step = 0; step < config.training.steps; ++step) ...
// Reading, checking, printing and help all come from that one line. A section knows its options by their byte offsets
// from itself, so that a copy of a section refers to its own options.
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace octet {

using json = nlohmann::ordered_json;  // keys stay in the order in which they were written

struct Range {  // of a number; of each number of a list
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;
  bool contains(double x) const { return (low_open ? x > low : x >= low) && (high_open ? x < high : x <= high); }
  std::string text() const;  // "at least 1"; "" when nothing is excluded
};
inline Range at_least(double low) { return {.low = low}; }
inline Range more_than(double low) { return {.low = low, .low_open = true}; }
inline Range between(double low, double high) { return {.low = low, .high = high}; }
inline Range from_below(double low, double high) {
  return {.low = low, .high = high, .high_open = true};
}  // [low, high)

struct Aliases {  // other names under which the option is accepted
  std::vector<const char*> names;
  Aliases(std::initializer_list<const char*> list) : names(list) {}
};
struct Hidden {};  // accepted, but listed and printed only if given

class Section;

class OptionBase {
 public:
  virtual ~OptionBase() = default;
  const char* name() const { return name_; }
  const char* help() const { return help_; }
  const std::vector<const char*>& aliases() const { return aliases_; }
  bool hidden() const { return hidden_; }
  bool was_given() const { return given_; }  // by the file, the command line or set(); a default is not given
  bool answers_to(std::string_view key) const;
  std::string limits() const { return range_.text(); }

  // where: file and key, the start of each message. A value of the wrong type or out of range is an InputError.
  void read(const json& value, const std::string& where);
  void read_text(const std::string& text, const std::string& where);  // from a command line: JSON, or a bare string
  virtual json value() const = 0;
  virtual std::string type() const = 0;  // for people: "integer", "cosine | linear"
  std::string text() const;              // the value for people; strings without quotes

 protected:
  OptionBase(Section* owner, const char* name, const char* help);
  OptionBase(const OptionBase&) = default;
  OptionBase& operator=(const OptionBase&) = default;
  void add(const Range& range) { range_ = range; }
  void add(Aliases aliases) { aliases_ = std::move(aliases.names); }
  void add(Hidden) { hidden_ = true; }
  virtual void assign(const json& value, const std::string& where) = 0;
  virtual bool takes_bare_text() const { return false; }  // a command line's 123 is then a string

  const char *name_, *help_;
  std::vector<const char*> aliases_;
  Range range_;
  bool hidden_ = false, given_ = false;
};
std::ostream& operator<<(std::ostream& out, const OptionBase& option);

// T: bool, int64_t, double, std::string, std::vector<std::string>, std::vector<double>, std::array<bool, 3>.
template <class T>
class Option final : public OptionBase {
 public:
  template <class... Rules>
  Option(Section* owner, const char* name, T value, const char* help, Rules... rules)
      : OptionBase(owner, name, help), value_(std::move(value)) {
    (add(std::move(rules)), ...);
  }
  operator const T&() const { return value_; }
  const T& operator*() const { return value_; }
  const T* operator->() const { return &value_; }
  void set(T value) { value_ = std::move(value), given_ = true; }
  void default_to(T value) {  // a default that depends on other options
    if (!given_) value_ = std::move(value);
  }
  json value() const override;
  std::string type() const override;

 private:
  void assign(const json& value, const std::string& where) override;
  bool takes_bare_text() const override { return std::is_same_v<T, std::string>; }
  T value_;
};

// One of a list of names, each standing for a value of E. Of several names for a value the first is printed.
template <class E>
struct Named {
  const char* name;
  E value;
  bool listed = true;
};

class ChoiceBase : public OptionBase {
 public:
  json value() const override;
  std::string type() const override;
  const char* chosen() const;  // the name

 protected:
  struct Entry {
    const char* name;
    int value;
    bool listed;
  };
  using OptionBase::OptionBase;
  void assign(const json& value, const std::string& where) override;
  bool takes_bare_text() const override { return true; }
  std::vector<Entry> entries_;
  int value_ = 0;
};

template <class E>
class Choice final : public ChoiceBase {
 public:
  template <class... Rules>
  Choice(Section* owner, const char* name, E value, const char* help, const std::vector<Named<E>>& names,
         Rules... rules)
      : ChoiceBase(owner, name, help) {
    for (const Named<E>& n : names) entries_.push_back({n.name, int(n.value), n.listed});
    value_ = int(value);
    (add(std::move(rules)), ...);
  }
  operator E() const { return E(value_); }
  E operator*() const { return E(value_); }
  void set(E value) { value_ = int(value), given_ = true; }
  void default_to(E value) {
    if (!given_) value_ = int(value);
  }
};

struct OptionLine {  // a row of the table of help
  std::string path, type, value, limits, help;
  std::vector<std::string> aliases;
  bool hidden = false;
};

class Section {
 public:
  explicit Section(const char* name) : name_(name) {}
  const char* name() const { return name_; }
  std::vector<OptionBase*> options();  // in the order of their declarations
  std::vector<const OptionBase*> options() const;
  OptionBase* find(std::string_view key);        // by name or alias; null where there is none
  std::string path(std::string_view key) const;  // "training.steps"

  // Takes every key of a JSON object. Unknown keys are errors; others: paths of options of other sections to suggest.
  void read(const json& object, const std::string& where, const std::vector<std::string>& others = {});
  OptionBase& require(std::string_view key, const std::string& where, const std::vector<std::string>& others = {});
  json values() const;  // of all options; a hidden one only when it was given
  std::vector<OptionLine> lines() const;

 private:
  friend class OptionBase;
  const char* name_;
  std::vector<std::ptrdiff_t> offsets_;
};

}  // namespace octet
