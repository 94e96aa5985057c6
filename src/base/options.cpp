#include "base/options.h"

#include <cmath>
#include <ostream>

#include "base/json.h"

namespace octet {
namespace {

[[noreturn]] void mistyped(const std::string& where, const std::string& type, const json& value) {
  bad_input(where, ": expected ", type, ", got ", show(value));
}

const char* type_name(const bool*) { return "true or false"; }
const char* type_name(const int64_t*) { return "an integer"; }
const char* type_name(const double*) { return "a number"; }
const char* type_name(const std::string*) { return "a string"; }
const char* type_name(const std::vector<std::string>*) { return "a list of strings"; }
const char* type_name(const std::vector<double>*) { return "a list of numbers"; }
const char* type_name(const std::array<bool, 3>*) { return "a list of three of true or false"; }

void check_range(double x, const Range& range, const std::string& where, const json& value) {
  if (!range.contains(x)) bad_input(where, ": ", show(value), " is out of range; it must be ", range.text());
}

// Each of these returns false for a value of another type.
bool take(bool& out, const json& value, const Range&, const std::string&) {
  if (!value.is_boolean()) return false;
  out = value.get<bool>();
  return true;
}
bool take(int64_t& out, const json& value, const Range& range, const std::string& where) {
  if (!value.is_number()) return false;
  const double x = value.get<double>();
  if (value.is_number_float() && x != std::floor(x)) return false;  // 2e9 is an integer, 2.5 is not
  if (x >= 0x1p63 || x < -0x1p63 || (value.is_number_float() && std::abs(x) > 0x1p53))
    bad_input(where, ": ", show(value), " is out of range of a 64-bit integer");
  check_range(x, range, where, value);
  out = value.is_number_float() ? int64_t(x) : value.get<int64_t>();
  return true;
}
bool take(double& out, const json& value, const Range& range, const std::string& where) {
  if (!value.is_number()) return false;
  check_range(value.get<double>(), range, where, value);
  out = value.get<double>();
  return true;
}
bool take(std::string& out, const json& value, const Range&, const std::string&) {
  if (!value.is_string()) return false;
  out = value.get<std::string>();
  return true;
}
template <class T>
bool take(std::vector<T>& out, const json& value, const Range& range, const std::string& where) {
  std::vector<T> list;
  const json items = value.is_array() ? value : json::array({value});  // one value is a list of one
  for (size_t i = 0; i < items.size(); ++i)
    if (!take(list.emplace_back(), items[i], range, concat(where, "[", i, "]"))) return false;
  out = std::move(list);
  return true;
}
bool take(std::array<bool, 3>& out, const json& value, const Range&, const std::string&) {
  if (!value.is_array() || value.size() != out.size()) return false;
  for (const json& item : value)
    if (!item.is_boolean()) return false;
  out = value.get<std::array<bool, 3>>();
  return true;
}

std::string number(double x) {
  return json(x == std::floor(x) && std::abs(x) < 1e15 ? json(int64_t(x)) : json(x)).dump();
}

}  // namespace

std::string Range::text() const {
  const bool below = std::isfinite(high), above = std::isfinite(low);
  const std::string from = above ? (low_open ? "more than " : "at least ") + number(low) : "";
  const std::string to = below ? (high_open ? "less than " : "at most ") + number(high) : "";
  if (above && below && !low_open && !high_open) return "between " + number(low) + " and " + number(high);
  return from + (above && below ? " and " : "") + to;
}

OptionBase::OptionBase(Section* owner, const char* name, const char* help) : name_(name), help_(help) {
  owner->offsets_.push_back(reinterpret_cast<char*>(this) - reinterpret_cast<char*>(owner));
}

bool OptionBase::answers_to(std::string_view key) const {
  if (key == name_) return true;
  for (const char* alias : aliases_)
    if (key == alias) return true;
  return false;
}

void OptionBase::read(const json& value, const std::string& where) {
  assign(value, where);
  given_ = true;
}

void OptionBase::read_text(const std::string& text, const std::string& where) {
  json value = text;
  try {
    value.dump();
  } catch (const json::exception&) {
    bad_input(where, ": ", show(value),
              " is not UTF-8, and what is saved of a run could not hold it: rename the file, ", "or name it by a link");
  }
  if (text.empty() && this->value().is_array()) return read(json::array(), where);  // "data.validation=": none
  try {
    json parsed = parse_json(text, where);
    if (parsed.is_string() || !takes_bare_text()) value = std::move(parsed);
  } catch (const InputError&) {  // not JSON: the text itself
  }
  read(value, where);
}

std::string OptionBase::text() const {
  const json v = value();
  if (v.is_number_float()) return number(v.get<double>());
  return v.is_string() ? v.get<std::string>() : v.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::ostream& operator<<(std::ostream& out, const OptionBase& option) { return out << option.text(); }

template <class T>
json Option<T>::value() const {
  return value_;
}
template <class T>
std::string Option<T>::type() const {
  return type_name(&value_);
}
template <class T>
void Option<T>::assign(const json& value, const std::string& where) {
  if (!take(value_, value, range_, where)) mistyped(where, type(), value);
}
template class Option<bool>;
template class Option<int64_t>;
template class Option<double>;
template class Option<std::string>;
template class Option<std::vector<std::string>>;
template class Option<std::vector<double>>;
template class Option<std::array<bool, 3>>;

json ChoiceBase::value() const { return chosen(); }

const char* ChoiceBase::chosen() const {
  for (const Entry& entry : entries_)
    if (entry.value == value_) return entry.name;
  fail(__FILE__, __LINE__, name(), " has the value ", value_, ", which has no name");
}

std::string ChoiceBase::type() const {
  std::string names;
  for (const Entry& entry : entries_)
    if (entry.listed) names += (names.empty() ? "" : " | ") + std::string(entry.name);
  return names;
}

void ChoiceBase::assign(const json& value, const std::string& where) {
  std::vector<std::string> listed;
  for (const Entry& entry : entries_) {
    if (value.is_string() && value.get_ref<const std::string&>() == entry.name) {
      value_ = entry.value;
      return;
    }
    if (entry.listed) listed.push_back(entry.name);
  }
  if (!value.is_string()) mistyped(where, "one of " + type(), value);
  bad_input(where, ": ", show(value), " is not one of ", type(), did_you_mean(value.get<std::string>(), listed));
}

std::vector<OptionBase*> Section::options() {
  std::vector<OptionBase*> list;
  for (std::ptrdiff_t offset : offsets_)
    list.push_back(reinterpret_cast<OptionBase*>(reinterpret_cast<char*>(this) + offset));
  return list;
}
std::vector<const OptionBase*> Section::options() const {
  const std::vector<OptionBase*> list = const_cast<Section*>(this)->options();
  return {list.begin(), list.end()};
}

OptionBase* Section::find(std::string_view key) {
  for (OptionBase* option : options())
    if (option->answers_to(key)) return option;
  return nullptr;
}

std::string Section::path(std::string_view key) const { return concat(name_, *name_ ? "." : "", key); }

OptionBase& Section::require(std::string_view key, const std::string& where, const std::vector<std::string>& others) {
  if (OptionBase* option = find(key)) return *option;
  std::vector<std::string> paths;
  for (const OptionBase* option : options()) {
    if (option->hidden()) continue;
    paths.push_back(path(option->name()));
    for (const char* alias : option->aliases()) paths.push_back(path(alias));
  }
  std::string hint = did_you_mean(path(key), paths);
  const std::string tail = concat(".", key);
  for (const std::string& other : others)  // the right name in the wrong section
    if (other.ends_with(tail)) hint = concat("; did you mean ", other, "?");
  bad_input(where, ": ", path(key), ": unknown option", hint);
}

void Section::read(const json& object, const std::string& where, const std::vector<std::string>& others) {
  if (!object.is_object()) mistyped(concat(where, ": ", name_), "an object of options", object);
  std::vector<std::pair<const OptionBase*, std::string>> seen;
  for (const auto& [key, value] : object.items()) {
    OptionBase& option = require(key, where, others);
    for (const auto& [earlier, name] : seen)
      if (earlier == &option)
        bad_input(where, ": ", path(key), " and ", path(name), " are the same option; keep one of them");
    seen.emplace_back(&option, key);
    option.read(value, concat(where, ": ", path(key)));
  }
}

std::vector<OptionLine> Section::lines() const {
  std::vector<OptionLine> lines;
  for (const OptionBase* o : options())
    lines.push_back({path(o->name()),
                     o->type(),
                     o->text(),
                     o->limits(),
                     o->help(),
                     {o->aliases().begin(), o->aliases().end()},
                     o->hidden()});
  return lines;
}

json Section::values() const {
  json object = json::object();
  for (const OptionBase* option : options())
    if (!option->hidden() || option->was_given()) object[option->name()] = option->value();
  return object;
}

}  // namespace octet
