#include "data/hf_bpe.h"

#include <algorithm>
#include <cstdio>
#include <queue>

#include "base/check.h"
#include "data/unicode.h"

namespace octet {
namespace {

uint64_t pair_of(int left, int right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }

}  // namespace

Bpe::Bpe(const Fields& model, const std::string& where) {
  const std::string type = type_of(model, where);
  const Fields& vocabulary = part(model, "vocab", where);
  if ((!type.empty() && type != "BPE") || !vocabulary.is_object() || !model.contains("merges"))
    bad_input(where, ": \"", type, "\" is not supported: only byte-pair encoding (\"BPE\") is",
              type == "Unigram" ? "; give the tokenizer.model of this tokenizer, if it has one" : "");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const auto text = field<std::string>(model, affix, "", where); !text.empty())
      bad_input(where, ".", affix, ": \"", text, "\" is not supported");
  byte_fallback_ = field(model, "byte_fallback", false, where);
  fuse_unk_ = field(model, "fuse_unk", false, where);
  ignore_merges_ = field(model, "ignore_merges", false, where);
  vocabulary_.reserve(vocabulary.size());
  for (const auto& [piece, id] : vocabulary.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= 1 << 24)
      bad_input(where, ".vocab: the id of ", Fields(piece).dump(), " is ", id.dump());
    vocabulary_.emplace(piece, id.get<int>());
  }
  if (const auto unk = field<std::string>(model, "unk_token", "", where); !unk.empty()) {
    unk_ = id_of(unk);
    if (unk_ < 0) bad_input(where, ".unk_token: ", unk, " is not in the vocabulary");
  }
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", unsigned(byte));
    bytes_[byte] = id_of(name);
  }
  read_merges(model["merges"], where + ".merges");
}

void Bpe::read_merges(const Fields& merges, const std::string& where) {
  if (!merges.is_array()) bad_input(where, ": expected a list");
  merges_.reserve(merges.size());
  int rank = 0;
  for (const Fields& merge : merges) {
    std::string left, right;
    if (merge.is_string()) {  // "a b"; in later versions ["a", "b"]
      const std::string& both = merge.get_ref<const std::string&>();
      const size_t space = both.find(' ');
      left = both.substr(0, space);
      right = space == std::string::npos ? "" : both.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0], right = merge[1];
    }
    const int a = id_of(left), b = id_of(right), made = id_of(left + right);
    if (a < 0 || b < 0 || made < 0)
      bad_input(where, "[", rank, "]: ", merge.dump(),
                " is not a pair of pieces whose concatenation is in the vocabulary");
    merges_[pair_of(a, b)] = {rank++, made};
  }
}

int Bpe::id_of(std::string_view piece) const {
  const auto found = vocabulary_.find(piece);
  return found == vocabulary_.end() ? -1 : found->second;
}

void Bpe::encode(std::string_view word, std::vector<int>& ids) const {
  if (word.empty()) return;
  if (ignore_merges_)
    if (const int whole = id_of(word); whole >= 0) return ids.push_back(whole);
  std::vector<int> made;
  characters(word, made);
  merge(made);
  ids.insert(ids.end(), made.begin(), made.end());
}

// A character without a piece is its bytes, or unknown; where the model has no piece for that, it is lost.
void Bpe::characters(std::string_view word, std::vector<int>& ids) const {
  bool after_unknown = false;
  for (size_t at = 0; at < word.size();) {
    const std::string_view character = word.substr(at, character_bytes(word.substr(at)));
    at += character.size();
    const int id = id_of(character);
    const auto has_piece = [&](char c) { return bytes_[uint8_t(c)] >= 0; };
    if (id >= 0) {
      ids.push_back(id);
    } else if (byte_fallback_ && std::ranges::all_of(character, has_piece)) {
      for (const char c : character) ids.push_back(bytes_[uint8_t(c)]);
    } else if (unk_ >= 0) {
      if (!fuse_unk_ || !after_unknown) ids.push_back(unk_);
      after_unknown = true;
      continue;
    }
    after_unknown = false;
  }
}

void Bpe::merge(std::vector<int>& ids) const {
  struct Possible {
    int rank, at, made;  // with its neighbour
    bool operator<(const Possible& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }  // the top: earliest
  };
  const int n = int(ids.size());
  std::vector<int> next(ids.size()), before(ids.size());
  std::priority_queue<Possible> open;
  const auto find = [&](int at) -> const Merge* {
    if (at < 0 || ids[size_t(at)] < 0 || next[size_t(at)] >= n) return nullptr;
    const auto found = merges_.find(pair_of(ids[size_t(at)], ids[size_t(next[size_t(at)])]));
    return found == merges_.end() ? nullptr : &found->second;
  };
  const auto consider = [&](int at) {
    if (const Merge* merge = find(at)) open.push({merge->rank, at, merge->made});
  };
  for (int i = 0; i < n; ++i) next[size_t(i)] = i + 1, before[size_t(i)] = i - 1;
  for (int i = 0; i < n; ++i) consider(i);
  while (!open.empty()) {
    const Possible top = open.top();
    open.pop();
    const Merge* still = find(top.at);
    if (!still || still->made != top.made) continue;  // one of the two went into another merge
    const size_t at = size_t(top.at), right = size_t(next[at]);
    ids[at] = top.made;
    ids[right] = -1;
    next[at] = next[right];
    if (next[at] < n) before[size_t(next[at])] = top.at;
    consider(before[at]);
    consider(top.at);
  }
  std::erase(ids, -1);
}

}  // namespace octet
