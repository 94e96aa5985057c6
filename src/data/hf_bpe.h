#pragma once
// Byte-pair encoding by a list of merges, as the tokenizers library does it (Sennrich et al. 2016, arXiv:1508.07909):
// of all neighbours that may merge, those of the earliest merge do, from left to right, until none may.
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/hf_json.h"

namespace octet {

class Bpe {
 public:
  Bpe(const Fields& model, const std::string& where);  // "model" of a tokenizer.json

  void encode(std::string_view word, std::vector<int>& ids) const;  // appends
  int id_of(std::string_view piece) const;                          // -1: none
  int unk() const { return unk_; }
  bool byte_fallback() const { return byte_fallback_; }
  template <class F>
  void for_each_piece(F&& f) const {
    for (const auto& [piece, id] : vocabulary_) f(piece, id);
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  struct Merge {
    int rank, made;
  };
  void read_merges(const Fields& merges, const std::string& where);
  void characters(std::string_view word, std::vector<int>& ids) const;
  void merge(std::vector<int>& ids) const;

  std::unordered_map<std::string, int, Hash, std::equal_to<>> vocabulary_;
  std::unordered_map<uint64_t, Merge> merges_;  // by the pair of ids
  int unk_ = -1, bytes_[256];
  bool byte_fallback_ = false, fuse_unk_ = false, ignore_merges_ = false;
};

}  // namespace octet
