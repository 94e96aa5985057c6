#pragma once
// The index of Megatron-LM's token files, NAME.idx beside NAME.bin (github.com/NVIDIA/Megatron-LM, indexed_dataset.py):
//   "MMIDIDX\0\0", u64 version 1, u8 type of the ids, u64 sequences S, u64 boundaries B
//   i32 [S] ids of each sequence; i64 [S] byte of NAME.bin where it begins
//   i64 [B] documents: number d has the sequences [boundary d, boundary d + 1)
// Read in pieces and front to back: an index of billions of sequences takes no memory.
#include <cstdint>
#include <filesystem>
#include <vector>

#include "data/foreign_tokens.h"

namespace octet {

class MegatronIndex {
 public:
  explicit MegatronIndex(const std::filesystem::path& path);  // of NAME.idx

  IdType type() const { return type_; }
  int64_t documents() const { return boundaries_ - 1; }
  int64_t sequences() const { return sequences_; }
  int64_t bin_bytes() const;  // that NAME.bin should have, by the last sequence

  bool ended() const { return document_ == documents(); }
  // The ids of the next document, from the first on. The InputError of a damaged index names the sequence or document.
  int64_t next_document();

 private:
  template <class T>
  struct Column {  // numbers in the file, one behind the other, a page of them at hand
    int64_t offset = 0, count = 0, first = 0;
    std::vector<T> page;
    T at(const LongRead& file, int64_t i);
  };
  [[noreturn]] void damaged(const std::string& how) const;

  LongRead file_;
  IdType type_ = IdType::i32;
  int64_t sequences_ = 0, boundaries_ = 0;
  Column<int32_t> lengths_;
  Column<int64_t> starts_, documents_;
  int64_t document_ = 0, sequence_ = 0, ids_ = 0;  // all that was read
};

}  // namespace octet
