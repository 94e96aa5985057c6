// Published shapes, as their config.json has them.
#include "base/json.h"
#include "config/model.h"

namespace octet {
namespace {

struct Preset {
  const char *name, *fields;
};

constexpr Preset kPresets[] = {
    {"tiny-llama", R"({"model_type": "llama", "vocab_size": 2048, "hidden_size": 128, "intermediate_size": 352,
      "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
      "rms_norm_eps": 1e-5})"},
    {"llama-124m", R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048,
      "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
      "tie_word_embeddings": true})"},
    {"llama-1b", R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632,
      "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-5})"},
    {"llama2-7b", R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
      "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5})"},
    {"llama2-13b", R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 5120, "intermediate_size": 13824,
      "num_hidden_layers": 40, "num_attention_heads": 40, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5})"},
    {"llama2-70b", R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 28672,
      "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-5})"},
    {"neox-160m", R"({"model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 768, "intermediate_size": 3072,
      "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 2048, "eos_token_id": 0})"},
    {"neox-1b4", R"({"model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 8192,
      "num_hidden_layers": 24, "num_attention_heads": 16, "max_position_embeddings": 2048, "eos_token_id": 0})"},
    {"neox-6b9", R"({"model_type": "gpt_neox", "vocab_size": 50432, "hidden_size": 4096, "intermediate_size": 16384,
      "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048, "eos_token_id": 0})"},
    {"neox-20b", R"({"model_type": "gpt_neox", "vocab_size": 50432, "hidden_size": 6144, "intermediate_size": 24576,
      "num_hidden_layers": 44, "num_attention_heads": 64, "max_position_embeddings": 2048, "hidden_act": "gelu_fast",
      "eos_token_id": 0})"},
    {"mixtral-8x7b", R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768,
      "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.02})"},
    {"mixtral-8x22b", R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 6144, "intermediate_size": 16384,
      "num_hidden_layers": 56, "num_attention_heads": 48, "num_key_value_heads": 8, "max_position_embeddings": 65536,
      "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.001})"},
};

}  // namespace

std::vector<std::string> model_presets() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

json preset_fields(const std::string& name, const std::string& where) {
  for (const Preset& preset : kPresets)
    if (name == preset.name) return parse_json(preset.fields, name);
  std::string known;
  for (const std::string& preset : model_presets()) known += (known.empty() ? "" : ", ") + preset;
  bad_input(where, ": there is no preset \"", name, "\"", did_you_mean(name, model_presets()), " (presets: ", known,
            ")");
}

}  // namespace octet
