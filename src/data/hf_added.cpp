#include "data/hf_added.h"

#include <algorithm>

#include "data/unicode.h"

namespace octet {

std::vector<AddedToken> read_added_tokens(const Fields& tokenizer, const std::string& where) {
  std::vector<AddedToken> tokens;
  const auto list = tokenizer.find("added_tokens");
  if (list == tokenizer.end() || list->is_null()) return tokens;
  if (!list->is_array()) bad_input(where, ".added_tokens: expected a list");
  for (const Fields& one : *list) {
    const std::string place = concat(where, ".added_tokens[", tokens.size(), "]");
    if (!one.is_object()) bad_input(place, ": expected an object");
    AddedToken t{.id = field(one, "id", -1, place), .content = field<std::string>(one, "content", "", place)};
    if (t.id < 0 || t.id >= 1 << 24) bad_input(place, ".id: ", t.id, " is not an id");
    t.special = field(one, "special", false, place);
    t.single_word = field(one, "single_word", false, place);
    t.lstrip = field(one, "lstrip", false, place);
    t.rstrip = field(one, "rstrip", false, place);
    t.normalized = field(one, "normalized", !t.special, place);
    if (!t.content.empty()) tokens.push_back(std::move(t));
  }
  return tokens;
}

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) : tokens_(tokens) {
  std::erase_if(tokens_, [](const AddedToken& t) { return t.content.empty(); });
  for (size_t i = 0; i < tokens_.size(); ++i) by_first_[uint8_t(tokens_[i].content[0])].push_back(i);
  for (auto& list : by_first_)
    std::stable_sort(list.begin(), list.end(),
                     [&](size_t a, size_t b) { return tokens_[a].content.size() > tokens_[b].content.size(); });
}

bool AddedTokens::takes_space() const {
  return std::ranges::any_of(tokens_, [](const AddedToken& t) {
    const std::string_view inside = t.content;
    const bool blank =
        inside.find_first_not_of(" \n\t\r") == std::string_view::npos;  // a run of spaces: cuts are alone
    return t.single_word || t.lstrip || t.rstrip ||
           (inside.find_first_of(" \n") != std::string_view::npos && (!blank || inside.size() == 1));
  });
}

const AddedToken* AddedTokens::at(std::string_view rest) const {
  for (const size_t i : by_first_[uint8_t(rest[0])])
    if (rest.starts_with(tokens_[i].content)) return &tokens_[i];
  return nullptr;
}

std::vector<AddedTokens::Piece> AddedTokens::split(std::string_view text) const {
  std::vector<Piece> pieces;
  size_t done = 0;
  for (size_t at = 0; !empty() && at < text.size();) {
    const AddedToken* token = this->at(text.substr(at));
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (begin < done) continue;  // in the space that the token before took
    const std::string_view before = text.substr(0, begin), behind = text.substr(end);
    if (token->single_word &&
        ((!before.empty() && is_word(last_character(before))) || (!behind.empty() && is_word(first_character(behind)))))
      continue;
    while (token->lstrip && begin > done && is_space(last_character(text.substr(0, begin)))) do
        --begin;
      while ((uint8_t(text[begin]) & 0xc0) == 0x80);
    while (token->rstrip && end < text.size() && is_space(first_character(text.substr(end))))
      end += character_bytes(text.substr(end));
    if (done < begin) pieces.push_back({text.substr(done, begin - done)});
    pieces.push_back({text.substr(begin, end - begin), token->id});
    done = end;
  }
  if (done < text.size()) pieces.push_back({text.substr(done)});
  return pieces;
}

}  // namespace octet
