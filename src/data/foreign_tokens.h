#pragma once
// Token files of other programs: where in a file the ids stand, and of which type they are. All are little-endian.
//   llm.c      256 int32: magic 20240520, version 1, count; then uint16 (GPT-2). Magic 20240801, version 7: uint32
//              (Llama 3). github.com/karpathy/llm.c, dev/data
//   llm.q      1024 bytes: "BIN.TOK\n", int32 version 1 or 2, bytes an id (4), count, from version 2 on the vocabulary,
//              whether a bit for each token follows that masks its loss; then int32. github.com/IST-DASLab/llmq
//   megatron   NAME.bin: ids alone; NAME.idx (megatron_index.h): their type, and where documents begin
//   npy        an array of integers that NumPy saved: one dimension (or several, taken row by row)
//   uint16 …   ids alone, as numpy.tofile writes them (nanoGPT)
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"

namespace octet {

enum class IdType { u8, i8, u16, i16, u32, i32, u64, i64 };
int64_t bytes_of(IdType type);

// `count` ids that stand one behind the other in a file.
struct ForeignTokens {
  LongRead file;
  int64_t offset = 0, count = 0;  // bytes, ids
  IdType type = IdType::u16;
  int64_t vocab_size = 0;  // as the file says; 0: it does not

  int64_t bytes() const { return count * bytes_of(type); }
  // ids [first, first + out.size()); one that is negative or >= vocab_size is an InputError that says where it stands.
  void read(int64_t first, std::span<int32_t> out, int64_t vocab_size) const;
};

std::vector<std::string> foreign_formats();  // all names, for messages
// Checks the file's header, and that the file holds what it promises. megatron: `path` is NAME.bin, checked by itself.
ForeignTokens open_foreign(const std::string& format, const std::filesystem::path& path);

// Of these. head: the file's first 1024 bytes, or all it has.
ForeignTokens open_ids(LongRead file, IdType type);
ForeignTokens open_npy(LongRead file, const std::string& head);
// Refuses the file as one of this format, and says what it is.
[[noreturn]] void refuse_as(const std::string& format, const LongRead& file, const std::string& head);

}  // namespace octet
