#pragma once
// Token files back to text or JSONL: what octet tokenize of the result turns into the same tokens again.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace octet {

struct DetokenizeOptions {
  std::vector<std::string> inputs;  // names or globs of token files
  std::filesystem::path output;     // JSONL where its name ends with .jsonl or .ndjson, else text; may be /dev/stdout
  std::string json_key = "text";
  std::string separator = "<|endoftext|>";  // a line of its own between the documents of a text file
  std::function<void(int64_t done_tokens, int64_t total_tokens)> progress;
};
struct Detokenized {
  int64_t documents = 0, bytes = 0;  // bytes of their text
  int64_t ambiguous = 0;             // documents that hold the separator themselves: a text file cannot keep them whole
};
Detokenized detokenize(const Tokenizer& tokenizer, const DetokenizeOptions& options);

}  // namespace octet
