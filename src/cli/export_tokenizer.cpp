#include "cli/export_tokenizer.h"

#include "base/files.h"
#include "data/tokenizer_json.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

void check_fingerprint(const ModelFolder& from, const Tokenizer& tokenizer, const fs::path& path) {
  const json trained = from.state.is_object() ? from.state.value("tokenizer", json("0")) : json("0");
  if (trained != "0" && trained != std::to_string(tokenizer.fingerprint()))
    bad_input(path.string(), " is not the tokenizer of the tokens that ", from.path.string(),
              " was trained on: give that one with --tokenizer");
}

json piece(const Tokenizer& tokenizer, int id) { return id < 0 ? json(nullptr) : json(tokenizer.piece(id)); }

// What transformers learns about a tokenizer.model only from this file. Llama's class takes any sentencepiece model,
// whatever the architecture of the model; without `legacy` it treats text after a special token as sentencepiece does.
json config_of(const Tokenizer& tokenizer, const ModelConfig& model) {
  if (!tokenizer.is_sentencepiece())
    return {{"tokenizer_class", "PreTrainedTokenizerFast"},
            {"bos_token", piece(tokenizer, tokenizer.bos())},
            {"eos_token", piece(tokenizer, tokenizer.eos())},
            {"clean_up_tokenization_spaces", false},
            {"model_max_length", model.max_positions}};
  return {{"tokenizer_class", "LlamaTokenizer"},
          {"add_bos_token", tokenizer.bos() >= 0},
          {"add_eos_token", false},
          {"bos_token", piece(tokenizer, tokenizer.bos())},
          {"eos_token", piece(tokenizer, tokenizer.eos())},
          {"unk_token", piece(tokenizer, tokenizer.unk())},
          {"pad_token", nullptr},
          {"legacy", false},
          {"clean_up_tokenization_spaces", false},
          {"model_max_length", model.max_positions}};
}

}  // namespace

TokenizerSource find_tokenizer(const ModelFolder& from, const std::string& given) {
  TokenizerSource source;
  std::error_code none;
  const fs::path place = given.empty() ? from.path : fs::path(given);
  if (fs::is_directory(place, none)) {
    for (const char* name : kTokenizerFiles)
      if (fs::exists(place / name, none)) source.files.push_back({place / name, name});
    if (!given.empty() && source.files.empty())
      bad_input("--tokenizer ", given, ": neither tokenizer.model nor tokenizer.json is in that folder");
  } else {
    source.files.push_back({place, place.extension() == ".json" ? "tokenizer.json" : "tokenizer.model"});
  }
  for (const char* name : {"tokenizer.model", "tokenizer.json"})
    for (const TokenizerSource::File& file : source.files)
      if (file.name == name && !source.model) {
        source.model.emplace(file.from);
        check_fingerprint(from, *source.model, file.from);
      }
  return source;
}

void write_tokenizer(const TokenizerSource& source, const ModelConfig& model, const fs::path& folder) {
  for (const auto& [from, name] : source.files) write_file(folder / name, read_file(from));
  std::error_code none;
  if (!source.model) return;
  if (source.model->is_sentencepiece() && !fs::exists(folder / "tokenizer.json", none))
    if (const json fast = tokenizer_json(*source.model); !fast.is_null())
      write_file(folder / "tokenizer.json", fast.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
  if (!fs::exists(folder / "tokenizer_config.json", none))
    write_file(folder / "tokenizer_config.json", config_of(*source.model, model).dump(2) + "\n");
}

}  // namespace octet
