#pragma once
// The normalizers and pre-tokenizers of a tokenizer.json: text to the words that are encoded each by itself.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/hf_json.h"

namespace octet {

// Where a piece of text stands. Texts may be given in parts: only what begins takes a prefix.
struct Standing {
  bool begins = true;  // at the text's beginning, or behind an added token
  bool first = true;   // at the text's beginning
};

using Normalizer = std::function<void(std::string&, Standing)>;
Normalizer read_normalizer(const Fields& fields, const std::string& where);  // null: none

using WordList = std::vector<std::string>;
using PreTokenizer = std::function<void(WordList&, Standing)>;  // splits each word further
PreTokenizer read_pre_tokenizer(const Fields& fields, const std::string& where);

void replace_all(std::string& text, const std::string& from, const std::string& to);

// Bytes as the characters that stand for them in byte-level vocabularies, and back.
std::string to_byte_level(std::string_view text);
std::string from_byte_level(std::string_view piece);  // a piece with any other character stays as it is

}  // namespace octet
