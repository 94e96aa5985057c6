// Llama-2, arXiv:2307.09288:  h = x + attention(norm(x)),  y = h + mlp(norm(h))
// Dimension key:  N rows   C channels   H query heads   G key/value heads   D head size   F ffn width
#include "models/architectures.h"
#include "models/residual_block.h"
#include "nn/mlp.h"

namespace octet::BACKEND {
namespace {

Linear gate_up(Builder b, const ModelConfig& c, int64_t layer, const std::string& name) {
  const Shape shape{c.intermediate_size, c.hidden_size};
  return {b,
          {{name + "gate_proj.weight", shape}, {name + "up_proj.weight", shape}},
          {.layer = layer, .std = c.initializer_range}};
}
Linear down(Builder b, const ModelConfig& c, int64_t layer, const std::string& name) {
  return {
      b, {{name + "down_proj.weight", {c.hidden_size, c.intermediate_size}}}, {.layer = layer, .std = residual_std(c)}};
}

}  // namespace

SelfAttention grouped_attention(Builder b, const ModelConfig& c, int64_t layer, const std::string& name,
                                const Tensor& rope_table) {
  const int64_t C = c.hidden_size, q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
  const AttentionConfig config{.heads = {.H = c.num_heads, .G = c.num_kv_heads, .D = c.head_dim},
                               .layer = layer,
                               .channels = C,
                               .window = c.sliding_window,
                               .scale = 1 / std::sqrt(double(c.head_dim))};
  Linear qkv(b,
             {{name + "q_proj.weight", {q, C}}, {name + "k_proj.weight", {kv, C}}, {name + "v_proj.weight", {kv, C}}},
             {.layer = layer, .std = c.initializer_range});
  Linear out(b, {{name + "o_proj.weight", {C, q}}}, {.layer = layer, .std = residual_std(c)});
  return {config, std::move(qkv), std::move(out), rope_table};
}

std::unique_ptr<Block> llama_block(Builder b, const ModelConfig& c, int64_t layer, const Tensor& rope_table) {
  const std::string name = concat("model.layers.", layer, ".");
  const Norm::Options norm{Norm::Kind::rms, c.hidden_size, c.norm_eps};
  return residual_block<GatedMlp>({.attention_norm = {b, name + "input_layernorm", norm},
                                   .attention = grouped_attention(b, c, layer, name + "self_attn.", rope_table),
                                   .mlp_norm = {b, name + "post_attention_layernorm", norm},
                                   .mlp = {gate_up(b, c, layer, name + "mlp."), down(b, c, layer, name + "mlp.")}});
}

}  // namespace octet::BACKEND
