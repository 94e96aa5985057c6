// octet import: a model of Hugging Face's transformers to a checkpoint that training starts from: step 0, no moments.
#include <cstdio>
#include <filesystem>
#include <set>
#include <span>

#include "base/files.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/rng.h"
#include "cli/command.h"
#include "cli/dtypes.h"
#include "cli/model_folder.h"
#include "cli/report.h"
#include "config/config_file.h"
#include "data/checkpoints.h"
#include "data/checksums.h"
#include "data/safetensors_writer.h"
#include "data/tokenizer.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

constexpr int64_t kChunk = int64_t{1} << 24;  // elements in memory at once

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

// Of all parameters, so that an export gives back what was imported; "" where they differ or are none of the three.
std::string dtype_of(const SafetensorsModel& from, const std::vector<NamedShape>& parameters) {
  std::set<std::string> stored;
  for (const NamedShape& p : parameters) stored.insert(from.at(p.name).entry->dtype);
  return stored.size() == 1 ? long_name(*stored.begin()) : "";
}

void write_state(const fs::path& folder, const ModelConfig& model, const std::string& dtype) {
  write_file(folder / "config.json", write_config_file(model, "float32").dump(2) + "\n");
  const fs::path tokenizer = tokenizer_file(folder);
  const uint64_t fingerprint = tokenizer.empty() ? 0 : hash(read_file(tokenizer));
  json state{{"format", kCheckpointFormat},
             {"step", 0},
             {"samples", 0},
             {"updates", 0},
             {"skipped", 0},
             {"data", "0"},
             {"tokenizer", std::to_string(fingerprint)},
             {"ranks", 1},
             {"config", {{"model", write_model_section(model)}}}};
  if (!dtype.empty()) state["imported_dtype"] = dtype;
  write_file(folder / "state.json", state.dump(2) + "\n");
  Checksums checksums;
  checksums.add_tensors(folder / "model.safetensors");
  for (const auto& entry : fs::directory_iterator(folder))
    if (!checksums.has(entry.path().filename())) checksums.add_file(entry.path());
  checksums.write(folder);
  write_file(folder / "COMPLETE", "");
}

int run_import(const Arguments& arguments, Host*) {
  arguments.expect_words(1, 1);
  if (!arguments.has("out")) arguments.refuse("--out is missing: give the folder of the checkpoint to write");
  const fs::path from = arguments.words()[0];
  require_folder(from);
  const ModelConfig model = load_model_config(from);
  const HfLayout layout = hf_layout(model);
  const SafetensorsModel weights(from);
  const std::vector<NamedShape> parameters = parameters_of(model);
  check_names(parameters, weights, layout);

  StagedFolder staged(arguments.text("out"));
  std::error_code none;
  for (const char* name : kTokenizerFiles)
    if (fs::exists(from / name, none)) copy_file_to(from / name, staged.path());
  const size_t ends = end_ids(from).size();  // our config.json has room for one end of text
  if (fs::exists(from / "generation_config.json", none) || ends > 1)
    write_generation_config(from, model, staged.path());
  write_weights(staged.path() / "model.safetensors", weights, parameters, layout);
  write_state(staged.path(), model, dtype_of(weights, parameters));
  staged.commit();
  int64_t count = 0;
  for (const NamedShape& p : parameters) count += weights.at(p.name).entry->numel();
  if (arguments.has("json")) {
    const json report{{"out", staged.result().string()}, {"parameters", count}, {"dtype", "float32"}};
    print_report(report);
    return 0;
  }
  std::printf("%s: %s parameters in fp32; train from it with octet train CONFIG.json --resume %s\n",
              staged.result().c_str(), with_commas(count).c_str(), arguments.text("out").c_str());
  return 0;
}

}  // namespace

Command import_command() {
  return {
      .name = "import",
      .usage = "HF_DIR --out FOLDER",
      .summary = "convert a Hugging Face model to a starting checkpoint",
      .options = {{"out", "FOLDER", "the checkpoint to write"}, {"json", "", "print what was written as JSON"}},
      .more =
          "HF_DIR holds config.json (of transformers 4 or 5) and model.safetensors, or shards with their index, in\n"
          "any float type. Check the import with octet verify.\n"
          "\n"
          "  octet import Llama-2-7b-hf --out checkpoints/llama2-7b\n"
          "  octet train CONFIG.json --resume checkpoints/llama2-7b model.config=Llama-2-7b-hf\n",
      .run = run_import};
}

}  // namespace octet
