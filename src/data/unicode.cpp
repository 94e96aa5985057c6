#include "data/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "base/check.h"

namespace octet {
namespace {

struct Head {  // of a character at the start of `text`
  size_t bytes = 1;
  bool valid = false;
};

// Not valid: `bytes` is the longest part that may begin a character (Unicode 15, table 3-7).
Head head_of(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? uint8_t(text[i]) : uint8_t(0); };
  const uint8_t a = at(0);
  if (a < 0x80) return {1, true};
  const size_t size = a >= 0xc2 && a <= 0xdf ? 2 : a >= 0xe0 && a <= 0xef ? 3 : a >= 0xf0 && a <= 0xf4 ? 4 : 0;
  if (size == 0) return {};
  const uint8_t low = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80, high = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;
  if (at(1) < low || at(1) > high) return {};
  for (size_t i = 2; i < size; ++i)
    if ((at(i) & 0xc0) != 0x80) return {i, false};
  return {size, true};
}

char32_t decoded(std::string_view character) {
  utf8proc_int32_t c = 0;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(character.data()), utf8proc_ssize_t(character.size()), &c);
  return char32_t(c);
}

// Where the dialects differ: \s is White_Space (PCRE2 adds U+180E), \w has marks, \h is a hexadecimal digit.
std::string in_pcre2(std::string_view pattern) {
  std::string out;
  int classes = 0;  // how deep in [...]
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      const char* set = escaped == 's' || escaped == 'S'   ? "\\p{Z}\\t-\\r\\x{85}"
                        : escaped == 'w' || escaped == 'W' ? "\\p{Alphabetic}\\p{M}\\p{N}\\p{Pc}"
                        : escaped == 'h' || escaped == 'H' ? "0-9a-fA-F"
                                                           : nullptr;
      const bool inverted = escaped == 'S' || escaped == 'W' || escaped == 'H';
      if (set && !(inverted && classes)) out += classes ? set : concat(inverted ? "[^" : "[", set, "]");
      else out += {'\\', escaped};
      continue;
    }
    if (c == '[') ++classes;
    if (c == ']' && classes) --classes;
    out += c;
  }
  return out;
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Head head = head_of(text);
    if (!head.valid) return false;
    text.remove_prefix(head.bytes);
  }
  return true;
}

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Head head = head_of(text);
    out += head.valid ? text.substr(0, head.bytes) : std::string_view("\xef\xbf\xbd");
    text.remove_prefix(head.bytes);
  }
  return out;
}

size_t character_bytes(std::string_view valid) { return head_of(valid).bytes; }

std::string to_normal_form(NormalForm form, std::string_view valid) {
  if (std::ranges::all_of(valid, [](char c) { return uint8_t(c) < 0x80; })) return std::string(valid);
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::nfc || form == NormalForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()),
                                             utf8proc_ssize_t(valid.size()), &made, utf8proc_option_t(options));
  if (size == UTF8PROC_ERROR_NOMEM) throw SystemError("out of memory while normalising text");
  CHECK(size >= 0, "utf8proc: ", utf8proc_errmsg(size));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  return {reinterpret_cast<const char*>(made), size_t(size)};
}

bool is_space(char32_t c) {
  if ((c >= 0x09 && c <= 0x0d) || c == 0x85) return true;
  const utf8proc_category_t kind = utf8proc_category(utf8proc_int32_t(c));
  return kind == UTF8PROC_CATEGORY_ZS || kind == UTF8PROC_CATEGORY_ZL || kind == UTF8PROC_CATEGORY_ZP;
}

bool is_word(char32_t c) {
  // Circled and squared letters are symbols by category, and alphabetic. U+200C and U+200D join.
  if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
      (c >= 0x1f170 && c <= 0x1f189) || c == 0x200c || c == 0x200d)
    return true;
  const utf8proc_category_t kind = utf8proc_category(utf8proc_int32_t(c));
  return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_NL) || kind == UTF8PROC_CATEGORY_PC;
}

char32_t first_character(std::string_view valid) { return decoded(valid.substr(0, character_bytes(valid))); }
char32_t last_character(std::string_view valid) {
  size_t at = valid.size() - 1;
  while (at > 0 && (uint8_t(valid[at]) & 0xc0) == 0x80) --at;
  return decoded(valid.substr(at));
}

struct Regex::Code {
  pcre2_code* compiled = nullptr;
  Code() = default;
  Code(const Code&) = delete;
  ~Code() { pcre2_code_free(compiled); }
};

Regex::Regex(const std::string& pattern, const std::string& where) {
  const std::string ours = in_pcre2(pattern);
  const auto code = std::make_shared<Code>();
  int error = 0;
  PCRE2_SIZE at = 0;
  code->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(ours.data()), ours.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &at, nullptr);
  if (!code->compiled) {
    PCRE2_UCHAR why[256];
    pcre2_get_error_message(error, why, sizeof why);
    bad_input(where, ": not a regular expression that octet can read (", reinterpret_cast<const char*>(why), " at ", at,
              " of ", ours, ")");
  }
  pcre2_jit_compile(code->compiled, PCRE2_JIT_COMPLETE);  // where it cannot, it is interpreted
  code_ = code;
}

std::vector<Regex::Range> Regex::find(std::string_view valid) const {
  std::vector<Range> found;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(pcre2_match_data_create(1, nullptr),
                                                                                 &pcre2_match_data_free);
  if (!data) throw std::bad_alloc();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(valid.data());
  for (size_t from = 0; from < valid.size();) {
    int n = pcre2_match(code_->compiled, subject, valid.size(), from, PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT)
      n = pcre2_match(code_->compiled, subject, valid.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(),
                      nullptr);
    if (n == PCRE2_ERROR_NOMATCH) break;
    if (n < 0)
      bad_input("the tokenizer's regular expression takes too much time or memory on this text (PCRE2 ", n, ")");
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    if (ends[1] > ends[0]) found.emplace_back(ends[0], ends[1]);
    from = ends[1] > from ? ends[1] : from + character_bytes(valid.substr(from));
  }
  return found;
}

}  // namespace octet
