#pragma once
// Token files back to text or JSONL, which octet tokenize turns into the same tokens again.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace octet {

struct DetokenizeOptions {
  std::vector<std::string> inputs;  // names or globs of token files
  bool jsonl = false;               // a line of JSON for each document, else text
  std::string json_key = "text";
  std::string separator = "<|endoftext|>";  // a line of its own between the documents of a text file
  std::function<void(int64_t done_tokens, int64_t total_tokens)> progress;  // first with 0, before the work
};
struct Detokenized {
  int64_t documents = 0, bytes = 0;  // bytes of their text
  // Documents that a text file does not keep as they are: they hold the separator themselves, or have a newline next to
  // it, which is taken for a part of it.
  int64_t ambiguous = 0;
};
// Everything is checked before the first call of `write`.
Detokenized detokenize(const Tokenizer& tokenizer, const DetokenizeOptions& options,
                       const std::function<void(std::string_view)>& write);

}  // namespace octet
