#pragma once
// The tokenizer of an exported model, as transformers' AutoTokenizer finds it.
#include <optional>

#include "cli/model_folder.h"
#include "data/tokenizer.h"

namespace octet {

struct TokenizerSource {
  struct File {
    std::filesystem::path from;
    std::string name;  // in the exported folder
  };
  std::vector<File> files;         // none: no tokenizer is known
  std::optional<Tokenizer> model;  // of tokenizer.model, else of tokenizer.json
};
// given: --tokenizer, a file or a folder; "": the one next to the model. InputError: the model was trained
// with another one.
TokenizerSource find_tokenizer(const ModelFolder& from, const std::string& given);
// Copies the files; where there is only a tokenizer.model, also writes the config that transformers needs.
void write_tokenizer(const TokenizerSource& source, const ModelConfig& model, const std::filesystem::path& folder);

}  // namespace octet
