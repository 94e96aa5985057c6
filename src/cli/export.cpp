// octet export: a checkpoint to a folder that transformers loads.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <span>

#include "base/files.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/dtypes.h"
#include "cli/export_tokenizer.h"
#include "cli/model_folder.h"
#include "cli/report.h"
#include "config/config_file.h"
#include "data/safetensors_writer.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

constexpr int64_t kChunk = int64_t{1} << 22;  // elements in memory at once

// "5GB", "500MB", "2GiB" or bytes, as transformers takes it.
int64_t shard_bytes(const Arguments& arguments) {
  const std::string text = arguments.text("max-shard-size");
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, size_t(text.data() + text.size() - end));
  double factor = 0;
  for (const auto& [name, bytes] : {std::pair{"", 1.},
                                    {"B", 1.},
                                    {"KB", 1e3},
                                    {"MB", 1e6},
                                    {"GB", 1e9},
                                    {"TB", 1e12},
                                    {"KiB", 0x1p10},
                                    {"MiB", 0x1p20},
                                    {"GiB", 0x1p30},
                                    {"TiB", 0x1p40}})
    if (unit == name) factor = bytes;
  const double bytes = number * factor;
  if (error != std::errc() || !(bytes >= 1) || bytes > 1e18)
    arguments.refuse(concat("--max-shard-size ", text, ": expected a size such as 5GB, 500MB or 2GiB"));
  return int64_t(bytes);
}

// The type that was asked for; else that of the imported model or of the stored weights, where all have one.
ExchangeType type_of(const Arguments& arguments, const ModelFolder& from, const SafetensorsModel& weights,
                     const std::vector<NamedShape>& parameters) {
  const std::string asked = arguments.text("dtype");
  if (asked != "auto") {
    const auto type = exchange_type(asked);
    if (!type) arguments.refuse(concat("--dtype ", asked, ": expected float32, bfloat16, float16 or auto"));
    return *type;
  }
  if (from.state.is_object() && from.state.contains("imported_dtype") && from.state["imported_dtype"].is_string())
    if (const auto type = exchange_type(from.state["imported_dtype"].get<std::string>())) return *type;
  const std::string first = weights.at(parameters.at(0).name).entry->dtype;
  for (const NamedShape& p : parameters)
    if (weights.at(p.name).entry->dtype != first) return kExchangeTypes[0];
  return exchange_type(first).value_or(kExchangeTypes[0]);
}

struct File {
  std::string name;
  std::vector<StoredTensor> tensors;
  int64_t bytes = 0;
};

// As few files as the limit allows, in the model's order; a tensor above the limit has a file of its own.
std::vector<File> files_of(const std::vector<NamedShape>& parameters, const HfLayout& layout, DType dtype,
                           int64_t most) {
  std::vector<File> files(1);
  for (const NamedShape& p : parameters) {
    StoredTensor t{p.name, dtype, stored_shape(p, layout)};
    int64_t bytes = int64_t(size_of(dtype));
    for (int64_t d : t.shape) bytes *= d;
    if (files.back().bytes > 0 && files.back().bytes + bytes > most) files.emplace_back();
    files.back().bytes += bytes;
    files.back().tensors.push_back(std::move(t));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, files.size());
    files[i].name = files.size() == 1 ? "model.safetensors" : name;
  }
  return files;
}

class Copier {  // tensors from a model to files, converted; rows beyond the vocabulary are left out
 public:
  Copier(const SafetensorsModel& from, const ExchangeType& type, int64_t total)
      : from_(from), type_(type), progress_({.what = "exporting", .total = total, .unit = "B"}) {}

  void write(const fs::path& folder, const File& file) {
    SafetensorsWriter writer(folder / file.name, file.tensors, {{"format", "pt"}}, WriterRole::create);
    for (const StoredTensor& t : file.tensors) {
      int64_t numel = 1;
      for (int64_t d : t.shape) numel *= d;
      const SafetensorsModel::Place place = from_.at(t.name);
      for (int64_t i = 0; i < numel; i += kChunk) {
        const int64_t count = std::min(kChunk, numel - i);
        part(writer, place, i, count);
        progress_.update(done_ += count * int64_t(size_of(t.dtype)));
      }
    }
    writer.close();
  }
  int64_t nonfinite() const { return nonfinite_; }

 private:
  void part(SafetensorsWriter& writer, SafetensorsModel::Place place, int64_t first, int64_t count) {
    const std::string& name = place.entry->name;
    values_.resize(size_t(count));
    from_.read(place, first, count, values_.data());
    for (float v : values_) {
      nonfinite_ += !std::isfinite(v);
      if (type_.dtype == DType::f16 && std::isfinite(v) && !std::isfinite(float(f16(v))))
        bad_input(place.file->path().string(), ": ", name, " holds ", v,
                  ", beyond float16's largest number, 65504: use --dtype bfloat16");
    }
    const size_t size = size_of(type_.dtype);
    if (place.entry->dtype == type_.stored)  // the same bytes, those of a NaN too
      writer.write_bytes(name, first, {place.file->data(*place.entry) + size_t(first) * size, size_t(count) * size});
    else writer.write(name, first, std::span<const float>(values_));
  }

  const SafetensorsModel& from_;
  const ExchangeType& type_;
  Progress progress_;
  std::vector<float> values_;
  int64_t done_ = 0, nonfinite_ = 0;
};

void write_index(const fs::path& folder, const std::vector<File>& files) {
  json map = json::object();
  int64_t total = 0;
  for (const File& file : files) {
    total += file.bytes;
    for (const StoredTensor& t : file.tensors) map[t.name] = file.name;
  }
  const json index{{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_file(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

// The exported model's config: with its tokenizer's beginning and end of text, and the requested vocabulary.
ModelConfig exported(const Arguments& arguments, const ModelFolder& from, const TokenizerSource& tokenizer) {
  ModelConfig model = from.model;
  const int64_t entries = tokenizer.model ? tokenizer.model->vocab_size() : 0;
  if (entries > model.vocab_size)
    bad_input("the tokenizer has ", entries, " entries, the model's vocabulary ", model.vocab_size,
              ": it is another model's tokenizer; give the right one with --tokenizer");
  if (arguments.has("vocab-size")) {
    const int64_t asked = arguments.integer("vocab-size", 1);
    if (asked > model.vocab_size)
      arguments.refuse(concat("--vocab-size ", asked, ": the model has ", model.vocab_size,
                              " entries; the option can only remove some"));
    if (asked < entries)
      arguments.refuse(
          concat("--vocab-size ", asked, ": the tokenizer has ", entries, " entries, some of which would be removed"));
    model.vocab_size = asked;
  }
  if (tokenizer.model) {
    // A tokenizer.json may not say which tokens begin and end a text: then the model's own config decides.
    const auto of = [&](int id, int64_t own) { return id < 0 && !tokenizer.model->is_sentencepiece() ? own : id; };
    model.bos_id = of(tokenizer.model->bos(), model.bos_id);
    model.eos_id = of(tokenizer.model->eos(), model.eos_id);
  }
  for (const auto& [id, name] : {std::pair{model.bos_id, "bos_token_id"}, {model.eos_id, "eos_token_id"}})
    if (id >= model.vocab_size)
      bad_input("--vocab-size ", model.vocab_size, " would remove ", name, " ", id, ": take more");
  return model;
}

int run_export(const Arguments& arguments, Host*) {
  arguments.expect_words(1, 1);
  if (!arguments.has("out")) arguments.refuse("--out is missing: give the folder to write");
  const int64_t most = shard_bytes(arguments);
  const ModelFolder from = open_model_folder(arguments.words()[0]);
  const SafetensorsModel weights(from.path);
  const std::vector<NamedShape> parameters = parameters_of(from.model);
  check_names(parameters, weights, hf_layout(from.model));
  const ExchangeType type = type_of(arguments, from, weights, parameters);
  const TokenizerSource tokenizer = find_tokenizer(from, arguments.text("tokenizer"));
  const ModelConfig model = exported(arguments, from, tokenizer);
  const HfLayout layout = hf_layout(model);
  const std::vector<File> files = files_of(parameters, layout, type.dtype, most);
  int64_t total = 0;
  for (const File& file : files) total += file.bytes;

  if (model.arch == Arch::neox && model.sliding_window)
    log_warning("transformers has no GPT-NeoX with a sliding_window: texts longer than ", model.sliding_window,
                " tokens give different logits there");

  StagedFolder staged(arguments.text("out"));
  write_file(staged.path() / "config.json", write_config_file(model, type.name).dump(2) + "\n");
  write_generation_config(from.path, model, staged.path());
  write_tokenizer(tokenizer, model, staged.path());
  Copier copier(weights, type, total);
  for (const File& file : files) copier.write(staged.path(), file);
  if (files.size() > 1) write_index(staged.path(), files);
  staged.commit();

  if (copier.nonfinite()) log_warning(copier.nonfinite(), " weights are not finite numbers");
  const int64_t count = total / int64_t(size_of(type.dtype));
  if (arguments.has("json")) {
    json names = json::array();
    for (const File& file : files) names.push_back(file.name);
    const json report{{"out", staged.result().string()},
                      {"from", from.path.string()},
                      {"dtype", type.name},
                      {"parameters", count},
                      {"bytes", total},
                      {"files", names},
                      {"vocab_size", model.vocab_size},
                      {"tokenizer", !tokenizer.files.empty()},
                      {"nonfinite", copier.nonfinite()}};
    print_report(report);
    return 0;
  }
  std::printf("%s: %s parameters of %s in %s, %s in %zu %s\n", staged.result().c_str(), with_commas(count).c_str(),
              from.path.c_str(), type.name, human_bytes(double(total)).c_str(), files.size(),
              files.size() == 1 ? "file" : "files");
  if (tokenizer.files.empty()) std::printf("No tokenizer is known of it; give one with --tokenizer.\n");
  if (tokenizer.model && tokenizer.model->vocab_size() < model.vocab_size)
    std::printf("Its vocabulary has %s entries, its tokenizer %s; --vocab-size %d would remove the rest.\n",
                with_commas(model.vocab_size).c_str(), with_commas(tokenizer.model->vocab_size()).c_str(),
                tokenizer.model->vocab_size());
  return 0;
}

}  // namespace

Command export_command() {
  return {
      .name = "export",
      .usage = "CHECKPOINT --out HF_DIR [OPTIONS]",
      .summary = "write a checkpoint as a folder that transformers loads",
      .options = {{"out", "HF_DIR", "the folder to write"},
                  {"dtype", "auto|float32|bfloat16|float16", "type of the weights; auto: as imported, else as stored",
                   "auto"},
                  {"max-shard-size", "SIZE", "largest file of weights: 5GB, 500MB, 2GiB", "5GB"},
                  {"tokenizer", "PATH",
                   "tokenizer.model or tokenizer.json, or a folder with one (default: the one in CHECKPOINT)"},
                  {"vocab-size", "N", "entries to keep, if the vocabulary was padded for training"},
                  {"json", "", "print what was written as JSON"}},
      .more =
          "CHECKPOINT is a folder step-N, saved by any number of ranks, a run's folder (its newest step is\n"
          "taken), the result of octet import, or a folder saved by transformers, which is then converted.\n"
          "Written are safetensors, a config.json for transformers 4 and 5, generation_config.json, and the\n"
          "tokenizer.\n"
          "\n"
          "  octet export out/tiny_llama/step-00000200 --out out/hf\n"
          "  octet export out/llama_1b --out out/hf --dtype bfloat16 --max-shard-size 2GB\n"
          "  python -c 'from transformers import AutoModelForCausalLM as M; print(M.from_pretrained(\"out/hf\"))'\n",
      .run = run_export};
}

}  // namespace octet
