#pragma once
// Token files of other programs (foreign_tokens.h) to one of octet's, in constant memory. Documents begin where
// Megatron's index says, else at each `bos` and behind each `eos`; the files are one stream, as a document may go on in
// the next one (llm.c's shards).
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace octet {

struct ConvertOptions {
  std::string format;               // one of foreign_formats()
  std::vector<std::string> inputs;  // names or globs; a glob's files in sorted order
  std::filesystem::path output;
  int64_t vocab_size = 0;  // 0: as the files say
  uint64_t tokenizer_fingerprint = 0;
  int32_t bos = -1, eos = -1;  // ids that begin and end each document
  bool marked = true;          // false: each file is one document
  // Called first with 0, before the work.
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
};

TokenFileHeader convert_tokens(const ConvertOptions& options);  // what was written

}  // namespace octet
