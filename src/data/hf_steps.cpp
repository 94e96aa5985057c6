#include "data/hf_steps.h"

#include <algorithm>
#include <array>
#include <map>

#include "data/unicode.h"

namespace octet {
namespace {

// GPT-2's, which "ByteLevel" splits by.
constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// "Whitespace" is Rust's: its \w has decimal digits only.
constexpr const char* kWords =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\s]+)";

std::vector<Regex::Range> find_all(std::string_view text, const std::string& what) {
  std::vector<Regex::Range> found;
  for (size_t at = 0; !what.empty() && (at = text.find(what, at)) != std::string_view::npos; at += what.size())
    found.emplace_back(at, at + what.size());
  return found;
}

// {"String": …} or {"Regex": …}
using Finder = std::function<std::vector<Regex::Range>(std::string_view)>;
Finder read_pattern(const Fields& step, const std::string& where) {
  const Fields& pattern = part(step, "pattern", where);
  if (pattern.is_string() || pattern.contains("String")) {
    const std::string what =
        pattern.is_string() ? pattern.get<std::string>() : field<std::string>(pattern, "String", "", where);
    return [what](std::string_view text) { return find_all(text, what); };
  }
  const auto expression = field<std::string>(pattern, "Regex", "", where + ".pattern");
  if (expression.empty())
    bad_input(where, ".pattern: expected {\"String\": …} or {\"Regex\": …}, got ", pattern.dump());
  const Regex regex(expression, where + ".pattern");
  return [regex](std::string_view text) { return regex.find(text); };
}

struct Part {
  size_t begin, end;
  bool match;
};
std::vector<Part> parts_of(std::string_view text, const std::vector<Regex::Range>& found, bool invert) {
  std::vector<Part> parts;
  size_t at = 0;
  for (const auto& [begin, end] : found) {
    if (at < begin) parts.push_back({at, begin, invert});
    parts.push_back({begin, end, !invert});
    at = end;
  }
  if (at < text.size()) parts.push_back({at, text.size(), invert});
  return parts;
}

enum class Behavior { removed, isolated, with_previous, with_next, contiguous };
Behavior behavior_of(const Fields& step, const std::string& where) {
  static const std::map<std::string, Behavior> kBehaviors{{"Removed", Behavior::removed},
                                                          {"Isolated", Behavior::isolated},
                                                          {"MergedWithPrevious", Behavior::with_previous},
                                                          {"MergedWithNext", Behavior::with_next},
                                                          {"Contiguous", Behavior::contiguous}};
  const auto name = field<std::string>(step, "behavior", "Isolated", where);
  const auto found = kBehaviors.find(name);
  if (found == kBehaviors.end()) bad_input(where, ".behavior: \"", name, "\" is not known");
  return found->second;
}

void split(std::string_view text, const std::vector<Part>& parts, Behavior behavior, WordList& out) {
  std::vector<Part> made;
  const size_t n = parts.size();
  for (size_t i = 0; i < n; ++i) {
    const Part& p = behavior == Behavior::with_next ? parts[n - 1 - i] : parts[i];
    const bool joins = !made.empty() && (behavior == Behavior::contiguous ? p.match == made.back().match
                                         : behavior == Behavior::with_previous || behavior == Behavior::with_next
                                             ? p.match && !made.back().match
                                             : false);
    if (behavior == Behavior::removed && p.match) continue;
    if (!joins) made.push_back(p);
    else if (behavior == Behavior::with_next) made.back() = {p.begin, made.back().end, true};
    else made.back() = {made.back().begin, p.end, p.match};
  }
  if (behavior == Behavior::with_next) std::reverse(made.begin(), made.end());
  for (const Part& p : made) out.emplace_back(text.substr(p.begin, p.end - p.begin));
}

PreTokenizer splitter(Finder find, Behavior behavior, bool invert) {
  return [find = std::move(find), behavior, invert](WordList& words, Standing) {
    WordList out;
    for (const std::string& word : words) split(word, parts_of(word, find(word), invert), behavior, out);
    words = std::move(out);
  };
}

PreTokenizer splitter(const char* regex, Behavior behavior) {
  return splitter([r = Regex(regex, "")](std::string_view text) { return r.find(text); }, behavior, false);
}

PreTokenizer byte_level(const Fields& step, const std::string& where) {
  const bool prefix = field(step, "add_prefix_space", true, where), regex = field(step, "use_regex", true, where);
  const Regex gpt2(kGpt2, "");
  return [=](WordList& words, Standing standing) {
    WordList out;
    bool begins = standing.begins;
    for (std::string& word : words) {
      // Each word takes a space, as in their library; of a text's later part none does that has no word before it.
      if (prefix && begins && !word.starts_with(' ')) word.insert(0, " ");
      begins = true;
      if (regex) split(word, parts_of(word, gpt2.find(word), false), Behavior::isolated, out);
      else out.push_back(word);
    }
    for (std::string& word : out) word = to_byte_level(word);
    words = std::move(out);
  };
}

PreTokenizer metaspace(const Fields& step, const std::string& where) {
  const auto mark = field<std::string>(step, "replacement", "\xe2\x96\x81", where);
  const bool prefix = field(step, "add_prefix_space", true, where), splits = field(step, "split", true, where);
  const auto scheme = field<std::string>(step, "prepend_scheme", prefix ? "always" : "never", where);
  if (scheme != "always" && scheme != "first" && scheme != "never")
    bad_input(where, ".prepend_scheme: \"", scheme, "\" is not one of always, first and never");
  return [=](WordList& words, Standing standing) {
    WordList out;
    bool first = true;
    for (std::string& word : words) {
      replace_all(word, " ", mark);
      const bool wanted = scheme == "always" ? standing.begins || !first : scheme == "first" && standing.first && first;
      if (wanted && !word.starts_with(mark)) word.insert(0, mark);
      first = false;
      if (splits) split(word, parts_of(word, find_all(word, mark), false), Behavior::with_next, out);
      else out.push_back(word);
    }
    words = std::move(out);
  };
}

// The steps of a "Sequence", one after another; a single step; or none.
template <class Step, class Read>
std::vector<Step> steps_of(const Fields& fields, const char* list, const std::string& where, Read&& read) {
  std::vector<Step> steps;
  if (fields.is_null()) return steps;
  if (type_of(fields, where) != "Sequence") {
    steps.push_back(read(fields, where));
    return steps;
  }
  int i = 0;
  for (const Fields& one : part(fields, list, where))
    for (Step& step : steps_of<Step>(one, list, concat(where, ".", list, "[", i++, "]"), read))
      steps.push_back(std::move(step));
  return steps;
}

PreTokenizer read_one_pre_tokenizer(const Fields& step, const std::string& where) {
  const std::string type = type_of(step, where);
  if (type == "ByteLevel") return byte_level(step, where);
  if (type == "Metaspace") return metaspace(step, where);
  if (type == "Split")
    return splitter(read_pattern(step, where), behavior_of(step, where), field(step, "invert", false, where));
  if (type == "Digits")
    return splitter("\\p{N}",
                    field(step, "individual_digits", false, where) ? Behavior::isolated : Behavior::contiguous);
  if (type == "Punctuation") return splitter("[\\p{P}$+<=>^`|~]", behavior_of(step, where));
  if (type == "WhitespaceSplit") return splitter("\\s", Behavior::removed);
  if (type == "Whitespace")
    return splitter([r = Regex(kWords, "")](std::string_view text) { return r.find(text); }, Behavior::removed,
                    /*invert=*/true);
  bad_input(where, ".type: \"", type, "\" is not supported; ByteLevel, Split, Digits, Metaspace, Punctuation and ",
            "WhitespaceSplit are");
}

Normalizer replacer(const Fields& step, const std::string& where) {
  const Finder find = read_pattern(step, where);
  const auto content = field<std::string>(step, "content", "", where);
  return [=](std::string& text, Standing) {
    const auto found = find(text);
    if (found.empty()) return;
    std::string out;
    size_t at = 0;
    for (const auto& [begin, end] : found) {
      out.append(text, at, begin - at).append(content);
      at = end;
    }
    text = out.append(text, at);
  };
}

Normalizer stripper(bool left, bool right) {
  return [=](std::string& text, Standing) {
    std::string_view rest = text;
    while (left && !rest.empty() && is_space(first_character(rest))) rest.remove_prefix(character_bytes(rest));
    while (right && !rest.empty() && is_space(last_character(rest))) {
      while ((uint8_t(rest.back()) & 0xc0) == 0x80) rest.remove_suffix(1);
      rest.remove_suffix(1);
    }
    text = std::string(rest);
  };
}

Normalizer read_one_normalizer(const Fields& step, const std::string& where) {
  const std::string type = type_of(step, where);
  static const std::map<std::string, NormalForm> kForms{
      {"NFC", NormalForm::nfc}, {"NFD", NormalForm::nfd}, {"NFKC", NormalForm::nfkc}, {"NFKD", NormalForm::nfkd}};
  if (const auto form = kForms.find(type); form != kForms.end())
    return [form = form->second](std::string& text, Standing) { text = to_normal_form(form, text); };
  if (type == "Prepend") {
    const auto prefix = field<std::string>(step, "prepend", "", where);
    return [prefix](std::string& text, Standing standing) {
      if (standing.begins && !text.empty()) text.insert(0, prefix);
    };
  }
  if (type == "Replace") return replacer(step, where);
  if (type == "Strip") return stripper(field(step, "strip_left", true, where), field(step, "strip_right", true, where));
  bad_input(where, ".type: \"", type, "\" is not supported; NFC, NFD, NFKC, NFKD, Prepend, Replace and Strip are");
}

// Printable bytes of Latin-1 stand for themselves, the others for the characters from U+0100 on.
const std::array<std::string, 256>& byte_characters() {
  static const std::array<std::string, 256> kCharacters = [] {
    std::array<std::string, 256> all;
    unsigned others = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      const unsigned c = printable ? b : others++;
      all[b] = c < 0x80 ? std::string(1, char(c)) : std::string{char(0xc0 | c >> 6), char(0x80 | (c & 0x3f))};
    }
    return all;
  }();
  return kCharacters;
}

}  // namespace

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  if (from.empty() || text.find(from) == std::string::npos) return;
  std::string out;  // in place, each of them would move the whole rest of the text
  out.reserve(text.size() + text.size() / 2);
  size_t done = 0;
  for (size_t at = 0; (at = text.find(from, done)) != std::string::npos; done = at + from.size())
    out.append(text, done, at - done).append(to);
  text = out.append(text, done);
}

Normalizer read_normalizer(const Fields& fields, const std::string& where) {
  const auto steps = steps_of<Normalizer>(fields, "normalizers", where, read_one_normalizer);
  if (steps.empty()) return nullptr;
  return [steps](std::string& text, Standing standing) {
    for (const Normalizer& step : steps) step(text, standing);
  };
}

PreTokenizer read_pre_tokenizer(const Fields& fields, const std::string& where) {
  const auto steps = steps_of<PreTokenizer>(fields, "pretokenizers", where, read_one_pre_tokenizer);
  return [steps](WordList& words, Standing standing) {
    for (const PreTokenizer& step : steps) {
      step(words, standing);
      std::erase_if(words, [](const std::string& word) { return word.empty(); });
    }
  };
}

std::string to_byte_level(std::string_view text) {
  std::string out;
  for (const char c : text) out += byte_characters()[uint8_t(c)];
  return out;
}

std::string from_byte_level(std::string_view piece) {
  static const std::map<std::string, char, std::less<>> kBytes = [] {
    std::map<std::string, char, std::less<>> all;
    for (unsigned b = 0; b < 256; ++b) all[byte_characters()[b]] = char(b);
    return all;
  }();
  std::string out;
  for (size_t at = 0; at < piece.size();) {
    const std::string_view character = piece.substr(at, character_bytes(piece.substr(at)));
    const auto found = kBytes.find(character);
    if (found == kBytes.end()) return std::string(piece);
    out += found->second;
    at += character.size();
  }
  return out;
}

}  // namespace octet
