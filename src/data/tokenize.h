#pragma once
// Text and JSONL files to one token file, on all cores and in memory that does not grow with the input. The output
// depends on the inputs, their order and the tokenizer alone, not on the number of threads.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/documents.h"
#include "data/token_file.h"
#include "data/tokenizer.h"

namespace octet {

struct TokenizeOptions {
  std::vector<std::string> inputs;  // names or globs; a glob's files in sorted order
  std::filesystem::path output;
  int threads = 0;              // 0: as many as the machine has
  bool bos = true, eos = true;  // around each document, where the tokenizer has them
  DocumentOptions documents;
  std::function<void(int64_t done_bytes, int64_t total_bytes)>
      progress;  // of input; called with 0 before the work and often during it, on the caller's thread
};

TokenFileHeader tokenize(const Tokenizer& tokenizer, const TokenizeOptions& options);  // what was written

}  // namespace octet
