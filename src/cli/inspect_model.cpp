// octet inspect of checkpoints, folders of transformers and safetensors files.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "base/files.h"
#include "base/progress.h"
#include "cli/flatten.h"
#include "cli/inspect.h"
#include "cli/model_folder.h"
#include "config/config.h"
#include "data/checkpoints.h"
#include "data/checksums.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

json files_of(const fs::path& folder) {
  std::map<std::string, int64_t> sizes;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (entry.is_regular_file(none)) sizes[entry.path().filename().string()] = int64_t(entry.file_size(none));
  return sizes;
}

json tensors_of(const SafetensorsModel& model) {
  json list = json::array();
  model.for_each([&](const SafetensorsModel::Place& p) {
    list.push_back(
        {{"name", p.entry->name}, {"dtype", p.entry->dtype}, {"shape", p.entry->shape}, {"bytes", p.entry->bytes}});
  });
  return list;
}

// Adds tensors, their number of elements, and how many of them each type has.
void add_tensors(json& report, const SafetensorsModel& model) {
  int64_t elements = 0;
  std::map<std::string, int64_t> types;
  model.for_each([&](const SafetensorsModel::Place& p) {
    elements += p.entry->numel();
    types[p.entry->dtype] += p.entry->numel();
  });
  report["parameters"] = elements;
  report["elements_by_dtype"] = types;
  report["tensors"] = tensors_of(model);
}

// What config.json says; where octet does not support it, why, since its tensors can be listed all the same.
void add_model(json& report, const fs::path& folder, const SafetensorsModel& weights) {
  try {
    const ModelConfig model = load_model_config(folder.string());
    report["model"] = write_model_section(model);
    check_names(parameters_of(model), weights, hf_layout(model));
  } catch (const InputError& e) { report["unsupported"] = e.what(); }
}

// 1 and 1.0 are one value: options are printed shorter than JSON prints numbers.
bool same_value(const std::string& a, const std::string& b) {
  const json x = json::parse(a, nullptr, false), y = json::parse(b, nullptr, false);
  return a == b || (x.is_number() && y.is_number() && x == y);
}

json changed_options(const json& config) {  // those that are not at their defaults, the model's left out
  std::map<std::string, std::string> defaults;
  for (const OptionLine& line : all_options()) {
    defaults[line.path] = line.value;
    for (const std::string& alias : line.aliases)  // how an older version called it
      defaults[line.path.substr(0, line.path.rfind('.') + 1) + alias] = line.value;
  }
  json changed = json::object();
  for (const auto& [path, value] : flatten(config)) {
    const auto found = defaults.find(path);
    if (!path.starts_with("model.") && (found == defaults.end() || !same_value(found->second, value)))
      changed[path] = value;
  }
  return changed;
}

void add_state(json& report, const fs::path& folder, const json& state, const InspectOptions& options) {
  const auto number = [&](const char* key) {
    if (!state.contains(key) || !state[key].is_number_integer())
      bad_input((folder / "state.json").string(), ": '", key, "' is missing or not a whole number");
    return state[key].get<int64_t>();
  };
  for (const char* key : {"step", "samples", "updates", "skipped", "ranks"}) report[key] = number(key);
  const json config = state.value("config", json::object());
  const json training = config.is_object() ? config.value("training", json::object()) : json::object();
  const json seq_len = training.is_object() ? training.value("seq_len", json(0)) : json(0);
  int64_t tokens = 0;
  if (state.contains("tokens")) tokens = number("tokens");
  else if (seq_len.is_number_integer() && __builtin_mul_overflow(number("samples"), seq_len.get<int64_t>(), &tokens))
    bad_input((folder / "state.json").string(), ": more tokens than can be counted; the checkpoint is damaged");
  report["tokens"] = tokens;
  report["config"] = config;
  report["changed"] = changed_options(config);
  report["checksums"] = nullptr;
  if (options.quick || !has_checksums(folder)) return;
  int64_t bytes = 0;
  for (const auto& [name, size] : report["files"].items())
    if (name.ends_with(".safetensors")) bytes += size.get<int64_t>();
  Progress progress({.what = "checking", .total = bytes, .unit = "B"});
  const ChecksumReport sums = verify_checksums(folder, [&](int64_t done) { progress.update(done); });
  report["checksums"] = {{"compared", sums.compared}, {"different", sums.different}};
  report["ok"] = sums.different.empty();
}

void print_architecture(const json& m) {
  const std::string kind = m["model_type"];
  std::string text = concat(kind, ": ", m["num_hidden_layers"], " layers, width ", m["hidden_size"], ", ",
                            m["num_attention_heads"], " heads");
  if (m.contains("num_key_value_heads")) text += concat(" (", m["num_key_value_heads"], " of keys)");
  text += concat(", MLP ", m["intermediate_size"]);
  if (m.contains("num_local_experts"))
    text += concat(", ", m["num_local_experts"], " experts, ", m["num_experts_per_tok"], " a token");
  print_field("model", text);
  print_field("", concat("vocabulary ", commas(m["vocab_size"]), ", ", commas(m["max_position_embeddings"]),
                         " positions", m["tie_word_embeddings"] == true ? ", head tied to the embedding" : ""));
}

void print_state(const json& r) {
  print_field("step", concat(commas(r["step"]), ": ", commas(r["samples"]), " sequences, ", commas(r["tokens"]),
                             " tokens, ", commas(r["skipped"]), " updates skipped"));
  print_field("saved by", concat(commas(r["ranks"]), r["ranks"] == 1 ? " rank" : " ranks"));
  const char* name = "config";
  for (const auto& [path, value] : r["changed"].items()) {
    print_field(name, concat(path, " = ", value.get<std::string>()));
    name = "";
  }
}

void print_checksums(const json& r) {
  const json& sums = r["checksums"];
  if (sums.is_null()) return print_field("checksums", "not compared");
  const int64_t wrong = int64_t(sums["different"].size()), compared = sums["compared"];
  print_field("checksums", wrong ? concat(wrong, " of ", compared, " DIFFER: the checkpoint is damaged")
                                 : concat(compared, " agree"));
  for (const json& what : sums["different"]) print_field("", what);
}

}  // namespace

json inspect_safetensors(const std::string& path) {
  const SafetensorsModel model(path);
  json report{{"kind", "safetensors"}, {"path", path}, {"files", json::object()}, {"metadata", json::object()}};
  for (const auto& file : model.files()) {
    report["files"][file->path().filename().string()] = int64_t(fs::file_size(file->path()));
    for (const auto& [key, value] : file->metadata()) report["metadata"][key] = value;
  }
  add_tensors(report, model);
  return report;
}

json inspect_model_folder(const std::string& path, const InspectOptions& options) {
  const fs::path folder = find_model_folder(path);
  std::error_code none;
  const bool checkpoint = fs::exists(folder / "state.json", none);
  json report{{"kind", checkpoint ? "checkpoint" : "model"}, {"path", folder.string()}, {"ok", true}};
  if (folder != fs::path(path)) {
    report["steps"] = json::array();
    for (const fs::path& one : complete_checkpoints(path)) report["steps"].push_back(checkpoint_step(one));
  }
  report["files"] = files_of(folder);
  const json state = checkpoint ? read_checkpoint_state(folder) : json();
  const SafetensorsModel weights(folder);
  add_model(report, folder, weights);
  add_tensors(report, weights);
  report["tokenizer"] = json::array();
  for (const char* name : kTokenizerFiles)
    if (fs::exists(folder / name, none)) report["tokenizer"].push_back(name);
  if (checkpoint) add_state(report, folder, state, options);
  return report;
}

void print_model(const json& r, bool tensors) {
  print_field(r["path"].get<std::string>().c_str(), r["kind"] == "checkpoint" ? "checkpoint of octet"
                                                    : r["kind"] == "model"    ? "model of transformers"
                                                                              : "safetensors");
  if (r.contains("steps")) {
    std::string steps;
    for (const json& step : r["steps"]) steps += (steps.empty() ? "" : ", ") + commas(step);
    print_field("run", "the newest of the steps " + steps);
  }
  if (r.contains("step")) print_state(r);
  if (r.contains("model")) print_architecture(r["model"]);
  if (r.contains("unsupported")) print_field("not supported", r["unsupported"]);
  std::string types;
  for (const auto& [type, count] : r["elements_by_dtype"].items())
    types += (types.empty() ? "" : ", ") + commas(count) + " " + type;
  print_field(r["kind"] == "safetensors" ? "elements" : "parameters",
              concat(commas(r["parameters"]), " in ", r["tensors"].size(), " tensors: ", types));
  if (r.contains("tokenizer")) print_field("tokenizer", r["tokenizer"].empty() ? "none" : "yes");
  const char* name = "files";
  for (const auto& [file, bytes] : r["files"].items()) {
    char line[300];
    std::snprintf(line, sizeof line, "%-34s %10s", file.c_str(), human_bytes(bytes.get<double>()).c_str());
    print_field(std::exchange(name, ""), line);
  }
  if (r.contains("metadata"))
    for (const auto& [key, value] : r["metadata"].items()) print_field("metadata", key + " = " + show(value));
  if (r.contains("checksums")) print_checksums(r);
  if (!tensors) return;
  size_t width = 0;
  for (const json& t : r["tensors"]) width = std::max(width, t["name"].get_ref<const std::string&>().size());
  std::printf("\n");
  for (const json& t : r["tensors"])
    std::printf("%-*s  %-8s %s\n", int(width), t["name"].get<std::string>().c_str(),
                t["dtype"].get<std::string>().c_str(), to_string(t["shape"].get<std::vector<int64_t>>()).c_str());
}

}  // namespace octet
