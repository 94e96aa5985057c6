// What octet verify expects of its files is what golden/README.md describes.
#include "cli/verify_files.h"

#include <algorithm>

#include "base/files.h"
#include "base/json.h"
#include "data/loader.h"
#include "data/safetensors.h"

namespace octet {
namespace {

using Shape = std::vector<int64_t>;

void expect_shape(const SafetensorsFile& file, const char* name, const Shape& shape) {
  const auto& entry = file.at(name);
  if (entry.shape != shape)
    bad_input(file.path().string(), ": ", name, " has the shape ", to_string(entry.shape), "; expected ",
              to_string(shape));
}

void check_ids(const SafetensorsFile& file, const char* name, int64_t vocabulary) {
  const bool labels = std::string_view(name) == "labels";
  for (const int32_t id : file.read_all<int32_t>(name))
    if ((id < 0 || id >= vocabulary) && !(labels && id == kIgnore))
      bad_input(file.path().string(), ": ", name, " holds ", id, "; the model has a vocabulary of ", vocabulary);
}

void check_length(const SafetensorsFile& file, int64_t tokens, const ModelConfig& model) {
  if (tokens < 1 || tokens > model.max_positions)
    bad_input(file.path().string(), ": sequences of ", tokens, " tokens; the model takes 1 to ", model.max_positions);
}

void check_expected(const std::string& path, const ModelConfig& model) {
  const SafetensorsFile file(path);
  const Shape ids = file.at("input_ids").shape;  // [B, T]
  if (ids.size() != 2 || ids[0] < 1) bad_input(path, ": input_ids has the shape ", to_string(ids), "; expected [B, T]");
  check_length(file, ids[1], model);
  expect_shape(file, "logits", {ids[0], ids[1], model.vocab_size});
  check_ids(file, "input_ids", model.vocab_size);
  const auto optional = [&](const char* name, const Shape& shape) {
    if (file.find(name)) expect_shape(file, name, shape);
  };
  optional("labels", ids);
  optional("loss", {1});
  if (model.num_experts) {
    optional("router_logits", {model.num_layers, ids[0] * ids[1], model.num_experts});
    optional("aux_loss", {1});
  }
  const std::vector<std::string> absent = absent_parts(path);
  if (file.find("labels")) {
    check_ids(file, "labels", model.vocab_size);
  } else if (absent.size() < 2) {
    bad_input(path, " has ", absent.empty() || absent[0] != "loss" ? "a loss" : "gradients", " but no labels: add the ",
              "target of each position, [B, T], -100 where none counts");
  }
}

void check_trajectory(const std::string& path, const ModelConfig& model) {
  const json t = read_json(path);
  const auto part = [&](const json& in, const char* key, const char* what, auto&& fits) {
    if (!in.is_object() || !in.contains(key) || !fits(in[key])) bad_input(path, ": ", key, " is missing or no ", what);
  };
  const auto number = [](const json& v) { return v.is_number(); };
  part(t, "hyper_parameters", "object", [](const json& v) { return v.is_object(); });
  const json& h = t["hyper_parameters"];
  part(h, "steps", "whole number of 1 or more", [](const json& v) { return v.is_number_integer() && v >= 1; });
  part(h, "warmup", "whole number", [](const json& v) { return v.is_number_integer() && v >= 0; });
  for (const char* key : {"lr", "min_lr", "beta1", "beta2", "eps", "weight_decay", "clip"})
    part(h, key, "number", number);
  std::vector<const char*> of_steps{"loss", "grad_norm"};
  if (model.num_experts) of_steps.push_back("aux_loss");
  for (const char* key : of_steps)
    part(t, key, "list of a number for each step", [&](const json& v) {
      return v.is_array() && v.size() == h["steps"].get<size_t>() && std::all_of(v.begin(), v.end(), number);
    });
  part(t, "final_norms", "object of numbers",
       [&](const json& v) { return v.is_object() && std::all_of(v.begin(), v.end(), number); });

  const SafetensorsFile batches(path.substr(0, path.size() - 5) + ".safetensors");
  const Shape shape = batches.at("batches").shape;  // [n, sequences, T+1]
  if (shape.size() != 3 || shape[0] < 1 || shape[1] < 1)
    bad_input(batches.path().string(), ": batches has the shape ", to_string(shape), "; expected [n, sequences, T+1]");
  check_length(batches, shape[2] - 1, model);
  check_ids(batches, "batches", model.vocab_size);
}

}  // namespace

std::vector<std::string> absent_parts(const std::string& path) {
  const SafetensorsFile file(path);
  std::vector<std::string> absent;
  if (!file.find("loss")) absent.push_back("loss");
  if (std::ranges::none_of(file.entries(), [](const auto& entry) { return entry.name.starts_with("grad."); }))
    absent.push_back("gradients");
  return absent;
}

void check_form(const VerifyRequest& request, const ModelConfig& model) {
  if (!request.expected.empty()) check_expected(request.expected, model);
  if (!request.trajectory.empty()) check_trajectory(request.trajectory, model);
}

}  // namespace octet
