// Models as transformers' config.json has them.
#include "base/json.h"
#include "config/config_file.h"

namespace octet {
namespace {

const char* name_of(RopeKind kind) {
  switch (kind) {
    case RopeKind::unscaled:
      return "default";
    case RopeKind::linear:
      return "linear";
    case RopeKind::dynamic:
      return "dynamic";
    case RopeKind::llama3:
      return "llama3";
    case RopeKind::yarn:
      return "yarn";
  }
  return "";
}

void write_scaling(json& rope, const RopeScaling& s) {
  rope["rope_type"] = name_of(s.kind);
  if (s.kind == RopeKind::unscaled) return;
  rope["factor"] = s.factor;
  if (s.original_max_positions) rope["original_max_position_embeddings"] = s.original_max_positions;
  if (s.kind == RopeKind::llama3) {
    rope["low_freq_factor"] = s.low_freq_factor;
    rope["high_freq_factor"] = s.high_freq_factor;
  }
  if (s.kind != RopeKind::yarn) return;
  if (s.attention_factor > 0) rope["attention_factor"] = s.attention_factor;
  rope["beta_fast"] = s.beta_fast;
  rope["beta_slow"] = s.beta_slow;
  if (!s.truncate) rope["truncate"] = false;
}

json id(int64_t token) { return token < 0 ? json(nullptr) : json(token); }

void write_rope(json& fields, const ModelConfig& m, int transformers_major) {
  const bool neox = m.arch == Arch::neox;
  if (transformers_major >= 5) {
    json& rope = fields["rope_parameters"] = json::object();
    if (neox) rope["partial_rotary_factor"] = m.rotary_pct;
    rope["rope_theta"] = m.rope_theta;
    write_scaling(rope, m.rope_scaling);
  } else if (neox) {
    fields["rotary_pct"] = m.rotary_pct;
    fields["rotary_emb_base"] = m.rope_theta;
  } else {
    fields["rope_theta"] = m.rope_theta;
  }
  if (transformers_major < 5 && m.rope_scaling.kind != RopeKind::unscaled)
    write_scaling(fields["rope_scaling"] = json::object(), m.rope_scaling);
}

}  // namespace

json write_model_config(const ModelConfig& m, int transformers_major) {
  const bool neox = m.arch == Arch::neox, mixtral = m.arch == Arch::mixtral;
  const bool mistral = m.arch == Arch::llama && m.sliding_window;  // transformers' Llama has no window
  json fields;
  fields["architectures"] = json::array({neox      ? "GPTNeoXForCausalLM"
                                         : mixtral ? "MixtralForCausalLM"
                                         : mistral ? "MistralForCausalLM"
                                                   : "LlamaForCausalLM"});
  fields["model_type"] = neox ? "gpt_neox" : mixtral ? "mixtral" : mistral ? "mistral" : "llama";
  fields["vocab_size"] = m.vocab_size;
  fields["hidden_size"] = m.hidden_size;
  fields["intermediate_size"] = m.intermediate_size;
  fields["num_hidden_layers"] = m.num_layers;
  fields["num_attention_heads"] = m.num_heads;
  if (!neox) fields["num_key_value_heads"] = m.num_kv_heads;
  if (!neox) fields["head_dim"] = m.head_dim;
  fields["max_position_embeddings"] = m.max_positions;
  fields[neox ? "layer_norm_eps" : "rms_norm_eps"] = m.norm_eps;
  write_rope(fields, m, transformers_major);
  fields["hidden_act"] = m.hidden_act;
  fields["initializer_range"] = m.initializer_range;
  fields["tie_word_embeddings"] = m.tie_embeddings;
  if (!mixtral && !mistral) fields["attention_bias"] = m.attention_bias;
  if (neox) fields["use_parallel_residual"] = m.parallel_residual;
  if (mixtral) {
    fields["num_local_experts"] = m.num_experts;
    fields["num_experts_per_tok"] = m.experts_per_token;
    fields["router_aux_loss_coef"] = m.router_aux_loss_coef;
    fields["router_jitter_noise"] = m.router_jitter;
    fields["output_router_logits"] = m.router_aux_loss_coef > 0;  // without it transformers trains without the loss
  }
  if (mixtral || m.sliding_window) fields["sliding_window"] = m.sliding_window ? json(m.sliding_window) : json(nullptr);
  fields["bos_token_id"] = id(m.bos_id);
  fields["eos_token_id"] = id(m.eos_id);
  return fields;
}

json write_config_file(const ModelConfig& m, const std::string& dtype) {
  json fields = write_model_config(m, 5);
  const json older = write_model_config(m, 4);
  for (const auto& [key, value] : older.items())
    if (!fields.contains(key)) fields[key] = value;
  fields["dtype"] = fields["torch_dtype"] = dtype;
  return fields;
}

json write_model_section(const ModelConfig& m) {
  json fields = write_model_config(m, 4);
  fields.erase("architectures");
  fields["attention"] = m.attention == AttentionKind::cudnn    ? "cudnn"
                        : m.attention == AttentionKind::native ? "native"
                                                               : "auto";
  fields["scaled_init"] = m.scaled_init;
  if (m.num_experts) {  // transformers knows none of these
    fields["router_aux_loss_per_layer"] = m.router_aux_loss_per_layer;
    fields["router_aux_loss_per_rank"] = m.router_aux_loss_per_rank;
    fields["router_z_loss_coef"] = m.router_z_loss_coef;
  }
  return fields;
}

}  // namespace octet
