#pragma once
// Folders that hold a model: a checkpoint of octet, the folder of a run (its newest checkpoint), or one that
// transformers saved. And folders that appear whole or not at all.
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/model.h"
#include "data/hf_model.h"

namespace octet {

void require_folder(const std::string& path);  // else an InputError that says why it is none

struct ModelFolder {
  std::filesystem::path path;  // of config.json and the weights
  json state;                  // state.json of a checkpoint of octet; null for a folder of transformers
  ModelConfig model;
};
// InputError: no such folder, none of these, a checkpoint that was cut short, a config.json
// that octet does not support.
ModelFolder open_model_folder(const std::string& path);
// The folder itself, or for the folder of a run its newest checkpoint.
std::filesystem::path find_model_folder(const std::string& path);

// What ends a text for this model: ids of generation_config.json, which transformers' generate() goes by, else those of
// config.json; chat models have several.
std::vector<int64_t> end_ids(const std::filesystem::path& folder);
// Copies generation_config.json, or writes what transformers would read from config.json.
void write_generation_config(const std::filesystem::path& from, const ModelConfig& model,
                             const std::filesystem::path& to);

std::vector<NamedShape> parameters_of(const ModelConfig& model);  // as the plan engine declares them, vocabulary padded

// What a tokenizer consists of, each file where there is one.
inline constexpr const char* kTokenizerFiles[] = {
    "tokenizer.model", "tokenizer.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json",
    "vocab.json",      "merges.txt",     "chat_template.jinja"};
void copy_file_to(const std::filesystem::path& from, const std::filesystem::path& folder);

// A folder beside the result, removed unless it became the result. The result must not exist, or be an empty folder. It
// has one writer at a time (a second one gets an InputError).
class StagedFolder {
 public:
  explicit StagedFolder(const std::string& result);
  StagedFolder(const StagedFolder&) = delete;
  ~StagedFolder();
  const std::filesystem::path& path() const { return staged_; }
  const std::filesystem::path& result() const { return result_; }
  void commit();

 private:
  std::filesystem::path result_, staged_;
  int lock_ = -1;
  bool committed_ = false;
};

}  // namespace octet
