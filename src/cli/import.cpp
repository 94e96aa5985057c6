// octet import: a model of Hugging Face's transformers to a checkpoint that training starts from: step 0, no moments.
#include <cstdio>
#include <filesystem>
#include <span>

#include "base/files.h"
#include "base/json.h"
#include "base/progress.h"
#include "cli/command.h"
#include "data/hf_model.h"
#include "data/safetensors_writer.h"
#include "data/tokenizer.h"
#include "host/engine.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

constexpr int kFormat = 1;                    // of state.json, as train/checkpoint.cpp reads it
constexpr int64_t kChunk = int64_t{1} << 24;  // elements in memory at once
constexpr const char* kCopied[] = {
    "tokenizer.model",         "tokenizer.json", "tokenizer_config.json",  "added_tokens.json",
    "special_tokens_map.json", "vocab.json",     "generation_config.json", "merges.txt"};

// Every parameter of the model, as the plan engine declares it.
std::vector<NamedShape> parameters_of(const ModelConfig& model) {
  RunConfig config = parse_config(json{{"model", write_model_section(model)}}.dump(), "import");
  config.training.seq_len.set(std::min<int64_t>(16, model.max_positions));
  config.training.global_batch_size.set(1);
  std::vector<NamedShape> all;
  for (auto& [name, shape] : plan::engine().plan(config, 1, Target{}).shapes) all.push_back({name, shape});
  return all;
}

void write_weights(const fs::path& path, const SafetensorsModel& from, const std::vector<NamedShape>& parameters,
                   const HfLayout& layout) {
  std::vector<StoredTensor> tensors;
  int64_t total = 0, done = 0;
  for (const NamedShape& p : parameters) {
    tensors.push_back({p.name, DType::f32, stored_shape(p, layout)});
    total += from.at(p.name).entry->numel();
  }
  SafetensorsWriter writer(path, tensors, {{"format", "pt"}}, WriterRole::create);
  Progress progress({.what = "importing", .total = total * 4, .unit = "B"});
  std::vector<float> values;
  for (const NamedShape& p : parameters) {
    const SafetensorsModel::Place place = from.at(p.name);
    for (int64_t i = 0; i < place.entry->numel(); i += kChunk) {
      values.resize(size_t(std::min(kChunk, place.entry->numel() - i)));
      from.read(place, i, int64_t(values.size()), values.data());
      writer.write(p.name, i, std::span<const float>(values));
      done += int64_t(values.size());
      progress.update(done * 4);
    }
  }
  writer.close();
}

void write_state(const fs::path& folder, const ModelConfig& model) {
  json config = write_model_config(model, 5);
  config["dtype"] = "float32";
  write_file(folder / "config.json", config.dump(2) + "\n");
  const fs::path tokenizer = folder / "tokenizer.model";
  const uint64_t fingerprint = fs::exists(tokenizer) ? Tokenizer(tokenizer).fingerprint() : 0;
  const json state{{"format", kFormat},
                   {"step", 0},
                   {"samples", 0},
                   {"updates", 0},
                   {"skipped", 0},
                   {"data", "0"},
                   {"tokenizer", std::to_string(fingerprint)},
                   {"ranks", 1},
                   {"config", {{"model", write_model_section(model)}}}};
  write_file(folder / "state.json", state.dump(2) + "\n");
}

class Staged {  // a folder beside the result, removed unless it became the result
 public:
  explicit Staged(const fs::path& result) : result_(result) {
    staged_ = result.parent_path() / concat(".importing-", result.filename().string());
    fs::remove_all(staged_);
    make_folders(staged_);
  }
  ~Staged() {
    std::error_code ignored;
    fs::remove_all(staged_, ignored);
  }
  const fs::path& path() const { return staged_; }
  void commit() {
    sync_path(staged_);
    if (fs::exists(result_)) fs::remove(result_);  // an empty folder
    rename_durably(staged_, result_);
    write_file(result_ / "COMPLETE", "");
    sync_path(result_);
  }

 private:
  fs::path result_, staged_;
};

int run_import(const Arguments& arguments, Host*) {
  arguments.expect_words(1, 1);
  if (!arguments.has("out")) arguments.refuse("--out is missing: give the folder of the checkpoint to write");
  const fs::path from = arguments.words()[0];
  fs::path out = fs::absolute(arguments.text("out")).lexically_normal();
  if (!out.has_filename()) out = out.parent_path();  // "folder/"
  if (!fs::is_directory(from))
    bad_input(from.string(),
              ": no such folder; give one with config.json and model.safetensors, as transformers saves it");
  if (fs::exists(out) && !(fs::is_directory(out) && fs::is_empty(out)))
    bad_input(out.string(), " exists; remove it or give another folder");
  const ModelConfig model = load_model_config(from);
  const HfLayout layout{.vocab_size = model.vocab_size, .tied_head = model.tie_embeddings};
  const SafetensorsModel weights(from);
  const std::vector<NamedShape> parameters = parameters_of(model);
  check_names(parameters, weights, layout);

  Staged staged(out);
  for (const char* name : kCopied)
    if (fs::exists(from / name)) fs::copy_file(from / name, staged.path() / name);
  write_weights(staged.path() / "model.safetensors", weights, parameters, layout);
  write_state(staged.path(), model);
  staged.commit();
  int64_t count = 0;
  for (const NamedShape& p : parameters) count += weights.at(p.name).entry->numel();
  std::printf("%s: %s parameters in fp32; train from it with octet train CONFIG.json --resume %s\n", out.c_str(),
              with_commas(count).c_str(), arguments.text("out").c_str());
  return 0;
}

}  // namespace

Command import_command() {
  return {
      .name = "import",
      .usage = "HF_DIR --out FOLDER",
      .summary = "make a starting checkpoint of a model in Hugging Face's form",
      .options = {{"out", "FOLDER", "the checkpoint to write"}},
      .more =
          "HF_DIR holds config.json (of transformers 4 or 5) and model.safetensors, or shards with their index, in\n"
          "any float type. Prove the import with octet verify.\n\n"
          "  octet import Llama-2-7b-hf --out checkpoints/llama2-7b\n"
          "  octet train CONFIG.json --resume checkpoints/llama2-7b model.config=Llama-2-7b-hf\n",
      .run = run_import};
}

}  // namespace octet
