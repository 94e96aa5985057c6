// GPT-NeoX, arXiv:2204.06745:  parallel    y = x + attention(norm1(x)) + mlp(norm2(x))
//                              sequential  h = x + attention(norm1(x)),  y = h + mlp(norm2(h))
// Dimension key:  N rows   C channels   H heads   D head size   F ffn width
#include "models/architectures.h"
#include "models/residual_block.h"
#include "nn/gelu_mlp.h"

namespace octet::BACKEND {
namespace {

AttentionConfig attention_config(const ModelConfig& c, int64_t layer) {
  return {.heads = {.H = c.num_heads, .G = c.num_heads, .D = c.head_dim, .interleaved = true},
          .layer = layer,
          .channels = c.hidden_size,
          .window = c.sliding_window,
          .scale = 1 / std::sqrt(double(c.head_dim))};
}
// name.weight, and name.bias on request
Linear linear(Builder b, const std::string& name, Shape shape, const Linear::Options& options, bool bias) {
  Linear::Options all = options;
  if (bias) all.bias = name + ".bias";
  return {b, {{name + ".weight", shape}}, all};
}
Linear qkv(Builder b, const ModelConfig& c, int64_t layer, const std::string& name) {
  return linear(b, name + "attention.query_key_value", {3 * c.hidden_size, c.hidden_size},
                {.layer = layer, .std = c.initializer_range}, c.attention_bias);
}
Linear out(Builder b, const ModelConfig& c, int64_t layer, const std::string& name) {
  return linear(b, name + "attention.dense", {c.hidden_size, c.hidden_size}, {.layer = layer, .std = residual_std(c)},
                c.attention_bias);
}
Linear up(Builder b, const ModelConfig& c, int64_t layer, const std::string& name) {
  return linear(b, name + "mlp.dense_h_to_4h", {c.intermediate_size, c.hidden_size},
                {.layer = layer, .std = c.initializer_range}, true);
}
Linear down(Builder b, const ModelConfig& c, int64_t layer, const std::string& name) {
  return linear(b, name + "mlp.dense_4h_to_h", {c.hidden_size, c.intermediate_size},
                {.layer = layer, .std = residual_std(c)}, true);
}

}  // namespace

std::unique_ptr<Block> neox_block(Builder b, const ModelConfig& c, int64_t layer, const Tensor& rope_table) {
  const std::string name = concat("gpt_neox.layers.", layer, ".");
  const Norm::Options norm{Norm::Kind::layer, c.hidden_size, c.norm_eps};
  return residual_block<GeluMlp>(
      {.attention_norm = {b, name + "input_layernorm", norm},
       .attention = {attention_config(c, layer), qkv(b, c, layer, name), out(b, c, layer, name), rope_table},
       .mlp_norm = {b, name + "post_attention_layernorm", norm},
       .mlp = {up(b, c, layer, name), down(b, c, layer, name), c.hidden_act == "gelu" ? Gelu::exact : Gelu::tanh},
       .residual = c.parallel_residual ? Residual::parallel : Residual::sequential});
}

}  // namespace octet::BACKEND
