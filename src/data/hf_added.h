#pragma once
// The added tokens of a tokenizer.json: texts that are one token wherever they stand, found
// before anything else is done.
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "data/hf_json.h"

namespace octet {

struct AddedToken {
  int id = -1;
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = true, special = false;
};
std::vector<AddedToken> read_added_tokens(const Fields& tokenizer, const std::string& where);

class AddedTokens {  // those of one kind: found in the text as it is, or in the normalised text
 public:
  AddedTokens() = default;
  explicit AddedTokens(const std::vector<AddedToken>& tokens);  // their contents as they are searched for

  struct Piece {
    std::string_view text;
    int id = -1;  // -1: between tokens
  };
  std::vector<Piece> split(std::string_view text) const;  // leftmost tokens, of those the longest
  bool empty() const { return tokens_.empty(); }
  bool takes_space() const;  // one has a space or line end inside or beside it, or looks at its neighbours

 private:
  const AddedToken* at(std::string_view rest) const;
  std::vector<AddedToken> tokens_;
  std::array<std::vector<size_t>, 256> by_first_;  // tokens by first byte, long ones first
};

}  // namespace octet
