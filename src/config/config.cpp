#include "config/config.h"

#include <algorithm>
#include <filesystem>

#include "base/files.h"
#include "base/json.h"

namespace octet {
namespace fs = std::filesystem;
namespace {

struct Change {  // section.key=value of a command line, taken apart
  std::string section, key, value;
};

Change parse_change(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    bad_input("command line: \"", text, "\": expected section.key=value, for example training.steps=100");
  const std::string path = text.substr(0, equals), value = text.substr(equals + 1);
  const size_t dot = path.find('.');
  if (dot == std::string::npos) return {"", path, value};
  return {path.substr(0, dot), path.substr(dot + 1), value};
}

class Reader {
 public:
  Reader(RunConfig& config, const std::vector<std::string>& changes) : config_(config) {
    for (const std::string& text : changes) changes_.push_back(parse_change(text));
    for (const OptionLine& line : all_options()) {
      paths_.push_back(line.path);
      const size_t dot = line.path.find('.');
      const std::string section = line.path.substr(0, dot);
      if (sections_.empty() || sections_.back() != section) sections_.push_back(section);
    }
  }

  void read(const json& document) {
    if (!document.is_object()) bad_input(config_.where, ": expected an object of sections, got ", show(document));
    json model = document.value("model", json());
    for (const auto& [key, value] : document.items())
      if (key != "model") read_section(key, value);
    std::vector<Override> of_model;
    for (const Change& change : changes_) {
      if (change.section == "model") of_model.push_back({change.key, change.value});
      else if (change.section.empty() && change.key == "model") model = model_of(change.value);
      else apply(change);
    }
    if (model.is_null() && of_model.empty())
      bad_input(config_.where,
                ": model is missing; give {\"preset\": \"llama2-7b\"}, the path of a config.json, or fields");
    config_.model = read_model_section(model.is_null() ? json::object() : model, of_model, config_.where, paths_);
  }

 private:
  static json model_of(const std::string& text) {  // model={…} or model=PATH
    return text.starts_with('{') ? parse_json(text, "command line: model") : json(text);
  }
  Section* section(const std::string& name) {
    for (Section* s : config_.sections())
      if (name == s->name()) return s;
    return nullptr;
  }
  [[noreturn]] void unknown(const std::string& where, const std::string& key) {
    for (const std::string& path : paths_)
      if (path.starts_with(key + "."))
        bad_input(where, ": ", key, " is a section: give one of its options, such as ", path, " (octet help config ",
                  key, " lists them)");
    std::string hint = did_you_mean(key, sections_);
    for (const std::string& path : paths_)  // "steps" for "training.steps"
      if (path.ends_with("." + key)) hint = concat("; did you mean ", path, "?");
    bad_input(where, ": ", key, ": unknown section or option", hint);
  }
  void read_section(const std::string& key, const json& value) {
    Section* own = key.empty() ? nullptr : section(key);
    if (own) own->read(value, config_.where, paths_);
    else if (OptionBase* option = config_.find(key)) option->read(value, config_.where + ": " + key);
    else unknown(config_.where, key);
  }
  void apply(const Change& change) {
    const std::string where = "command line";
    Section* own = section(change.section);
    if (!own) unknown(where, change.section);
    if (change.section.empty() && !config_.find(change.key)) unknown(where, change.key);
    own->require(change.key, where, paths_).read_text(change.value, concat(where, ": ", own->path(change.key)));
  }

  RunConfig& config_;
  std::vector<Change> changes_;
  std::vector<std::string> paths_, sections_;
};

void apply_preset(RunConfig& config) {
  Fp8Config& fp8 = config.fp8;
  if (fp8.preset == Fp8Preset::none) return;
  const bool te = fp8.preset == Fp8Preset::te;
  fp8.recipe.default_to(Fp8Recipe::delayed);
  fp8.format.default_to(Fp8Format::hybrid);
  fp8.margin.default_to(0);
  fp8.interval.default_to(1);
  fp8.amax_history_len.default_to(te ? 1024 : 32);
  fp8.amax_compute_algo.default_to(AmaxAlgo::max);
  fp8.reduce_group.default_to(ReduceGroup::world);
  fp8.update_every.default_to(UpdateEvery::microbatch);
  fp8.cold_start.default_to(ColdStart::one);
  fp8.weight_scaling.default_to(WeightScaling::delayed);
  fp8.all_gather.default_to(GatherType::bf16);
  fp8.te_compat.default_to(true);
  config.precision.reduce_dtype.default_to(te ? DType::f32 : DType::bf16);
}

void fill_defaults(RunConfig& config) {  // those that depend on other options
  apply_preset(config);
  Fp8Config& fp8 = config.fp8;
  if (!fp8.reduce_amax) fp8.reduce_group.default_to(ReduceGroup::none);
  if (fp8.reduce_group == ReduceGroup::none) fp8.reduce_amax.default_to(false);
  config.schedule.min_lr.default_to(config.schedule.lr / 10);
  if (config.training.seq_len == 0) config.training.seq_len.set(config.model.max_positions);
  if (config.memory.recompute_blocks == -1) config.memory.recompute_blocks.set(config.model.num_layers);
  PrecisionConfig& precision = config.precision;
  if (precision.grad_dtype == DType::bf16)
    precision.reduce_dtype.default_to(DType::bf16);  // wider would carry nothing more
  if (precision.param_dtype == DType::f64)
    for (Choice<DType>* type : {&precision.grad_dtype, &precision.reduce_dtype, &precision.buffer_dtype,
                                &precision.master_dtype, &precision.moment_dtype})
      type->default_to(DType::f64);
}

}  // namespace

std::vector<Section*> RunConfig::sections() {
  return {&data, &training, &optimizer, &schedule, &precision, &fp8, &parallel, &memory, &checkpoint, &log, this};
}

RunConfig parse_config(std::string_view text, const std::string& where, const std::vector<std::string>& overrides) {
  RunConfig config;
  config.where = where;
  Reader(config, overrides).read(parse_json(text, where));
  fill_defaults(config);
  validate(config);
  return config;
}

// A hint at the config that a wrong name may mean: "tiny_llama", "tiny-llama.json" are configs/tiny_llama.json.
static std::string similar_config(const fs::path& path) {
  std::vector<std::string> names, paths;
  for (const fs::path& folder : {path.has_parent_path() ? path.parent_path() : fs::path("."), fs::path("configs")}) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none)) {
      if (entry.path().extension() != ".json") continue;
      names.push_back(entry.path().stem());
      paths.push_back(entry.path().lexically_normal());
    }
  }
  const auto near = std::ranges::find(names, closest(path.stem().string(), names));
  return near == names.end() ? concat(": check the name (it is relative to ", fs::current_path().string(), ")")
                             : concat("; did you mean ", paths[size_t(near - names.begin())], "?");
}

RunConfig load_config(const std::string& path, const std::vector<std::string>& overrides) {
  if (std::error_code why; !fs::exists(path, why) && !why)
    bad_input("there is no config '", path, "'", similar_config(path));
  return parse_config(read_file(path), path, overrides);
}

json resolved(const RunConfig& config) {
  RunConfig copy = config;  // sections() gives what may be changed
  json document = {{"model", write_model_section(config.model)}};
  for (const Section* section : copy.sections()) {
    if (*section->name()) document[section->name()] = section->values();
    else document.update(section->values());
  }
  return document;
}

std::vector<OptionLine> all_options() {
  std::vector<OptionLine> lines = model_options();
  RunConfig defaults;
  for (const Section* section : defaults.sections())
    for (OptionLine& line : section->lines()) lines.push_back(std::move(line));
  return lines;
}

std::string option_table(std::string_view section) {
  std::string table, current = " ";
  for (const OptionLine& line : all_options()) {
    const size_t dot = line.path.find('.');
    const std::string own = dot == std::string::npos ? line.path : line.path.substr(0, dot);
    if (line.hidden || (!section.empty() && section != own)) continue;
    if (own != current) table += (table.empty() ? "" : "\n");
    current = own;
    table += concat("  ", line.path, " = ", line.value.empty() ? "\"\"" : line.value, "\n      ", line.help, "\n      ",
                    line.type, line.limits.empty() ? "" : ", ", line.limits);
    for (const std::string& alias : line.aliases) table += "; also " + alias;
    table += "\n";
  }
  return table;
}

}  // namespace octet
