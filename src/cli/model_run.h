#pragma once
// The finished model that a command works on: a checkpoint of octet, or a folder as transformers saves it.
#include <memory>

#include "cli/command.h"
#include "config/config.h"
#include "data/tokenizer.h"
#include "host/engine.h"

namespace octet {

// The model's config and where it runs, by the options --device and --dtype and section.key=value words. model: a
// folder, a config.json, or the config of a run, whose section "model" is taken.
struct ModelRun {
  RunConfig config;
  const Engine* engine = nullptr;
  Target target;
};
ModelRun run_of(const Arguments&, const std::string& model, const std::vector<std::string>& changes);
std::vector<OptionSpec> model_run_options();
// A config that names the model, for parse_config(). InputError: the name is not UTF-8.
std::string text_of(const json& document, const std::string& model);

// That of --tokenizer, or of the model's folder; null where there is none.
std::unique_ptr<Tokenizer> find_tokenizer(const Arguments&, const std::string& model);
Tokenizer require_tokenizer(const Arguments&, const std::string& model);

}  // namespace octet
