#pragma once
// The block of each architecture, each defined in its own file, and what they share.
#include <cmath>

#include "models/model.h"
#include "nn/attention.h"

namespace octet::BACKEND {

std::unique_ptr<Block> llama_block(Builder, const ModelConfig&, int64_t layer, const Tensor& rope_table);
std::unique_ptr<Block> neox_block(Builder, const ModelConfig&, int64_t layer, const Tensor& rope_table);
std::unique_ptr<Block> mixtral_block(Builder, const ModelConfig&, int64_t layer, const Tensor& rope_table);

// The attention of Llama and Mixtral: grouped-query, no biases. name: prefix of q_proj, k_proj, v_proj and o_proj.
SelfAttention grouped_attention(Builder, const ModelConfig&, int64_t layer, const std::string& name,
                                const Tensor& rope_table);

// Initial std of projections that write into the residual stream; with scaled_init divided by sqrt(2 L), as in GPT-2.
inline double residual_std(const ModelConfig& c) {
  return c.scaled_init ? c.initializer_range / std::sqrt(2. * double(c.num_layers)) : c.initializer_range;
}

}  // namespace octet::BACKEND
