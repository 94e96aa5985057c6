#pragma once
// A model whose greedy text is known without computing it.
#include "cli/tensors.h"

namespace octet {

// A model that goes on from each id of a chain to the next one: blocks of zeros leave the embedding as it is, and the
// head turns the k-th id's direction into the one behind it.
inline std::string chain_model(const Scratch& folder, const std::vector<int32_t>& chain, int64_t vocabulary,
                               float factor = 1) {
  const int64_t C = 16, F = 16;
  const std::string name = folder / "chain", layer = "model.layers.0.";
  std::filesystem::create_directory(name);
  write_file(name + "/config.json", json{{"model_type", "llama"},
                                         {"vocab_size", vocabulary},
                                         {"hidden_size", C},
                                         {"intermediate_size", F},
                                         {"num_hidden_layers", 1},
                                         {"num_attention_heads", 2},
                                         {"max_position_embeddings", 64}}
                                        .dump());
  FloatTensor embedding{"model.embed_tokens.weight", {vocabulary, C}, std::vector<float>(size_t(vocabulary * C))};
  FloatTensor head{"lm_head.weight", {vocabulary, C}, std::vector<float>(size_t(vocabulary * C))};
  for (size_t k = 0; k + 1 < chain.size(); ++k) {
    embedding.values[size_t(chain[k]) * size_t(C) + k] = 1;
    head.values[size_t(chain[k + 1]) * size_t(C) + k] = factor;
  }
  std::vector<FloatTensor> tensors{embedding, head, {"model.norm.weight", {C}, std::vector<float>(size_t(C), 1)}};
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
    tensors.push_back({layer + norm + ".weight", {C}, std::vector<float>(size_t(C), 1)});
  for (const char* square : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
    tensors.push_back({layer + square + ".weight", {C, C}, std::vector<float>(size_t(C * C))});
  write_tensors(name + "/model.safetensors", tensors);
  return name;
}

}  // namespace octet
