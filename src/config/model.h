#pragma once
// The architecture and sizes of a model, read from Hugging Face's config.json of transformers 4 or 5, or from the
// section "model" of a run's config: a preset, a path to a config.json, fields under Hugging Face's names, or a
// combination, in which the later of these wins.
#include <cstdint>
#include <string>
#include <vector>

#include "base/options.h"
#include "config/plan.h"

namespace octet {

enum class Arch { llama, neox, mixtral };

// How rotary frequencies are scaled to extend the range of positions, as in transformers' "rope_scaling" or
// "rope_parameters" (formulas: rope.h).
enum class RopeKind { unscaled, linear, dynamic, llama3, yarn };
struct RopeScaling {
  RopeKind kind = RopeKind::unscaled;
  double factor = 1;
  int64_t original_max_positions = 0;                // llama3, yarn
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double attention_factor = 0;                       // yarn; 0: from the factor
  double beta_fast = 32, beta_slow = 1;              // yarn
  bool truncate = true;                              // yarn
  bool operator==(const RopeScaling&) const = default;
};

struct ModelConfig {
  Arch arch = Arch::llama;
  int64_t vocab_size = 0;         // V
  int64_t hidden_size = 0;        // C
  int64_t num_layers = 0;         // L
  int64_t num_heads = 0;          // H
  int64_t num_kv_heads = 0;       // G
  int64_t head_dim = 0;           // D
  int64_t intermediate_size = 0;  // F
  int64_t max_positions = 0;
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  double rotary_pct = 1;  // share of a head's dimensions that is rotated
  bool tie_embeddings = false;
  double initializer_range = 0.02;
  std::string hidden_act = "silu";  // silu, gelu (exact), gelu_new and gelu_fast (tanh)
  bool parallel_residual = false;   // neox
  bool attention_bias = false;      // neox: of query_key_value and dense
  int64_t num_experts = 0;          // mixtral: E
  int64_t experts_per_token = 0;    // mixtral: K
  double router_aux_loss_coef = 0;
  bool router_aux_loss_per_layer = false;
  bool router_aux_loss_per_rank = false;
  double router_z_loss_coef = 0;
  double router_jitter = 0;
  int64_t sliding_window = 0;        // keys a query sees; 0: all before it
  int64_t bos_id = -1, eos_id = -1;  // -1: none

  AttentionKind attention = AttentionKind::automatic;
  bool scaled_init = false;  // residual projections by 1/sqrt(2L)

  int64_t rotary_dims() const { return int64_t(double(head_dim) * rotary_pct); }
  bool operator==(const ModelConfig&) const = default;
};

// Of a config.json's contents. where: the file, for messages.
ModelConfig read_model_config(const json& fields, const std::string& where);
ModelConfig load_model_config(const std::string& path);  // a config.json or the folder that holds it
// As transformers of that major version (4 or 5) reads it; the caller adds the dtype of its file.
json write_model_config(const ModelConfig& config, int transformers_major);

struct Override {  // model.key=value of a command line
  std::string key, value;
};
// The section "model" of a run's config: an object, or a string that stands for {"config": string}.
// others: paths of options of other sections, to suggest for a key that is unknown here.
ModelConfig read_model_section(const json& section, const std::vector<Override>& overrides, const std::string& where,
                               const std::vector<std::string>& others = {});
json write_model_section(const ModelConfig& config);  // what read_model_section turns into the same ModelConfig

std::vector<OptionLine> model_options();  // of the section "model", for the table of help

std::vector<std::string> model_presets();
json preset_fields(const std::string& name, const std::string& where);

}  // namespace octet
