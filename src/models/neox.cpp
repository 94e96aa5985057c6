// GPT-NeoX, arXiv:2204.06745:  parallel    y = x + attention(norm1(x)) + mlp(norm2(x))
//                              sequential  h = x + attention(norm1(x)),  y = h + mlp(norm2(h))
// Dimension key:  N rows   C channels   H heads   D head size   F ffn width
#include <cmath>

#include "models/architectures.h"
#include "nn/gelu_mlp.h"

namespace octet::BACKEND {
namespace {

class NeoxBlock final : public Block {
 public:
  NeoxBlock(Builder b, const ModelConfig& c, int64_t layer, const Tensor& rope_table)
      : NeoxBlock(b, c, layer, rope_table, concat("gpt_neox.layers.", layer, ".")) {}

  void forward(Context& c, Tensor y, Tensor x) override {
    const int64_t N = x.rows();
    Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
    const Tensor h = memory.alloc(x.dtype, x.shape);
    const Operand a = attention_.input(c, N);
    attention_norm_.forward(c, a, x);
    attention_.forward(c, h, a, x);
    const Operand m = mlp_.input(c, N);
    mlp_norm_.forward(c, m, parallel_ ? x : h);
    mlp_.forward(c, y, m, h);
  }

  void backward(Context& c, Tensor d) override {
    if (!parallel_) {
      mlp_norm_.backward(c, d, mlp_.backward(c, d));
      attention_norm_.backward(c, d, attention_.backward(c, d));
      return;
    }
    const Tensor dm = mlp_.backward(c, d), da = attention_.backward(c, d);  // both of dy, before d becomes dx
    mlp_norm_.backward(c, d, dm);
    attention_norm_.backward(c, d, da);
  }

 private:
  NeoxBlock(Builder b, const ModelConfig& c, int64_t layer, const Tensor& rope_table, const std::string& name)
      : parallel_(c.parallel_residual),
        attention_norm_(b, name + "input_layernorm", {Norm::Kind::layer, c.hidden_size, c.norm_eps}),
        attention_(attention_config(c, layer), qkv(b, c, layer, name), out(b, c, layer, name), rope_table),
        mlp_norm_(b, name + "post_attention_layernorm", {Norm::Kind::layer, c.hidden_size, c.norm_eps}),
        mlp_(up(b, c, layer, name), down(b, c, layer, name), c.hidden_act == "gelu" ? Gelu::exact : Gelu::tanh) {}

  static AttentionConfig attention_config(const ModelConfig& c, int64_t layer) {
    return {.heads = {.H = c.num_heads, .G = c.num_heads, .D = c.head_dim, .interleaved = true},
            .layer = layer,
            .channels = c.hidden_size,
            .window = c.sliding_window,
            .scale = 1 / std::sqrt(double(c.head_dim))};
  }
  // name.weight, and name.bias on request
  static Linear linear(Builder b, const std::string& name, Shape shape, const Linear::Options& options, bool bias) {
    Linear::Options all = options;
    if (bias) all.bias = name + ".bias";
    return {b, {{name + ".weight", shape}}, all};
  }
  static Linear qkv(Builder b, const ModelConfig& c, int64_t layer, const std::string& name) {
    return linear(b, name + "attention.query_key_value", {3 * c.hidden_size, c.hidden_size},
                  {.layer = layer, .std = c.initializer_range}, c.attention_bias);
  }
  static Linear out(Builder b, const ModelConfig& c, int64_t layer, const std::string& name) {
    return linear(b, name + "attention.dense", {c.hidden_size, c.hidden_size}, {.layer = layer, .std = residual_std(c)},
                  c.attention_bias);
  }
  static Linear up(Builder b, const ModelConfig& c, int64_t layer, const std::string& name) {
    return linear(b, name + "mlp.dense_h_to_4h", {c.intermediate_size, c.hidden_size},
                  {.layer = layer, .std = c.initializer_range}, true);
  }
  static Linear down(Builder b, const ModelConfig& c, int64_t layer, const std::string& name) {
    return linear(b, name + "mlp.dense_4h_to_h", {c.hidden_size, c.intermediate_size},
                  {.layer = layer, .std = residual_std(c)}, true);
  }

  bool parallel_;
  Norm attention_norm_;
  SelfAttention attention_;
  Norm mlp_norm_;
  GeluMlp mlp_;
};

}  // namespace

std::unique_ptr<Block> neox_block(Builder b, const ModelConfig& c, int64_t layer, const Tensor& rope_table) {
  return std::make_unique<NeoxBlock>(b, c, layer, rope_table);
}

}  // namespace octet::BACKEND
