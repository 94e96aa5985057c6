#include "cli/model_run.h"

#include <filesystem>

#include "base/json.h"
#include "cli/ranks.h"

namespace octet {
namespace fs = std::filesystem;

std::vector<OptionSpec> model_run_options() {
  return {{"device", "auto|cpu|cuda", "where to compute", "auto"},
          {"dtype", "TYPE", "of weights and activations: fp32, bf16, fp16, or auto: bf16 on a GPU, else fp32", "auto"},
          {"tokenizer", "PATH", "a tokenizer.model, a tokenizer.json or their folder, if the model's folder has none"}};
}

ModelRun run_of(const Arguments& arguments, const std::string& model, const std::vector<std::string>& changes) {
  json document{{"model", {{"config", model}}}, {"checkpoint", {{"dir", ""}}}, {"memory", {{"plan_cache", ""}}}};
  if (!fs::is_directory(model)) {
    const json file = read_json(model);
    if (file.is_object() && file.contains("model")) document["model"] = file["model"];
  }
  const std::string dtype = arguments.text("dtype");
  std::vector<std::string> all{"device=" + arguments.text("device")};
  if (dtype != "auto") all.push_back("precision.param_dtype=" + dtype);
  all.insert(all.end(), changes.begin(), changes.end());
  ModelRun run{.config = parse_config(text_of(document, model), model, all)};
  if (run.config.fp8.enabled)
    bad_input("fp8.enabled: models trained in FP8 are evaluated with plain weights; leave it out");
  if (!run.config.log.level.was_given()) run.config.log.level.set(LogLevel::warning);  // standard output is the result
  log_as(run.config, nullptr);
  run.engine = &choose_engine(run.config);
  if (dtype == "auto" && !run.config.precision.param_dtype.was_given())
    run.config.precision.param_dtype.set(run.engine == &cpu::engine() ? DType::f32 : DType::bf16);
  run.target = target_of(*run.engine, run.config);
  return run;
}

std::string text_of(const json& document, const std::string& model) {
  try {
    return document.dump();
  } catch (const json::exception&) {
    bad_input("the model ", show(model), " has a name that is not UTF-8: rename it, or name it by a link");
  }
}

std::unique_ptr<Tokenizer> find_tokenizer(const Arguments& arguments, const std::string& model) {
  if (arguments.has("tokenizer")) return std::make_unique<Tokenizer>(arguments.text("tokenizer"));
  std::error_code none;
  if (!fs::is_directory(model, none)) return nullptr;
  const fs::path own = tokenizer_file(model);
  return own.empty() ? nullptr : std::make_unique<Tokenizer>(own);
}

Tokenizer require_tokenizer(const Arguments& arguments, const std::string& model) {
  std::unique_ptr<Tokenizer> found = find_tokenizer(arguments, model);
  if (!found)
    arguments.refuse(concat(
        model, " holds neither tokenizer.model nor tokenizer.json, which text needs: give one with --tokenizer"));
  return std::move(*found);
}

}  // namespace octet
