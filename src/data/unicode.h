#pragma once
// What Unicode asks of a tokenizer: valid UTF-8, normal forms (utf8proc), and regular expressions in the dialect of
// Hugging Face's tokenizers library (Oniguruma's, run by PCRE2).
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet {

bool is_valid_utf8(std::string_view text);
// Each longest part that begins a character but is none becomes U+FFFD, as WHATWG's decoder and
// Rust's from_utf8_lossy do it.
std::string to_valid_utf8(std::string_view text);
size_t character_bytes(std::string_view valid);  // of the first character of a text that is not empty

enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string to_normal_form(NormalForm form, std::string_view valid);

bool is_space(char32_t c);  // White_Space
bool is_word(char32_t c);   // letters, marks, digits, connectors: \w of Rust
char32_t first_character(std::string_view valid);
char32_t last_character(std::string_view valid);

class Regex {
 public:
  Regex(const std::string& pattern, const std::string& where);  // InputError: not an expression; where begins it
  using Range = std::pair<size_t, size_t>;                      // [begin, end), in bytes
  std::vector<Range> find(std::string_view valid) const;        // all matches that are not empty, from left to right

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace octet
