// Mixtral, arXiv:2401.04088:  h = x + attention(norm(x)),  y = h + moe(norm(h))
#include "models/architectures.h"
#include "models/residual_block.h"
#include "nn/moe.h"

namespace octet::BACKEND {

std::unique_ptr<Block> mixtral_block(Builder b, const ModelConfig& c, int64_t layer, const Tensor& rope_table) {
  const std::string name = concat("model.layers.", layer, ".");
  const Norm::Options norm{Norm::Kind::rms, c.hidden_size, c.norm_eps};
  return residual_block<Moe>({.attention_norm = {b, name + "input_layernorm", norm},
                              .attention = grouped_attention(b, c, layer, name + "self_attn.", rope_table),
                              .mlp_norm = {b, name + "post_attention_layernorm", norm},
                              .mlp = {b,
                                      {.layer = layer,
                                       .channels = c.hidden_size,
                                       .width = c.intermediate_size,
                                       .experts = c.num_experts,
                                       .per_token = c.experts_per_token,
                                       .jitter = c.router_jitter,
                                       .std = c.initializer_range,
                                       .residual_std = residual_std(c),
                                       .name = name + "block_sparse_moe"}}});
}

}  // namespace octet::BACKEND
