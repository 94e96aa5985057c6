// Llama-2, arXiv:2307.09288:  h = x + attention(norm(x)),  y = h + mlp(norm(h))
// Dimension key:  N rows   C channels   H query heads   G key/value heads   D head size   F ffn width
#include <cmath>

#include "models/architectures.h"
#include "nn/mlp.h"

namespace octet::BACKEND {
namespace {

class LlamaBlock final : public Block {
 public:
  LlamaBlock(Builder b, const ModelConfig& c, int64_t layer, const Tensor& rope_table)
      : LlamaBlock(b, c, layer, rope_table, concat("model.layers.", layer, ".")) {}

  void forward(Context& c, Tensor y, Tensor x) override {
    const int64_t N = x.rows();
    Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
    const Tensor h = memory.alloc(x.dtype, x.shape);
    const Operand a = attention_.input(c, N);
    attention_norm_.forward(c, a, x);
    attention_.forward(c, h, a, x);
    const Operand m = mlp_.input(c, N);
    mlp_norm_.forward(c, m, h);
    mlp_.forward(c, y, m, h);
  }

  void backward(Context& c, Tensor d) override {
    mlp_norm_.backward(c, d, mlp_.backward(c, d));
    attention_norm_.backward(c, d, attention_.backward(c, d));
  }

 private:
  LlamaBlock(Builder b, const ModelConfig& c, int64_t layer, const Tensor& rope_table, const std::string& name)
      : attention_norm_(b, name + "input_layernorm", {Norm::Kind::rms, c.hidden_size, c.norm_eps}),
        attention_(grouped_attention(b, c, layer, name + "self_attn.", rope_table)),
        mlp_norm_(b, name + "post_attention_layernorm", {Norm::Kind::rms, c.hidden_size, c.norm_eps}),
        mlp_(gate_up(b, c, layer, name + "mlp."), down(b, c, layer, name + "mlp.")) {}

  static Linear gate_up(Builder b, const ModelConfig& c, int64_t layer, const std::string& name) {
    const Shape shape{c.intermediate_size, c.hidden_size};
    return {b,
            {{name + "gate_proj.weight", shape}, {name + "up_proj.weight", shape}},
            {.layer = layer, .std = c.initializer_range}};
  }
  static Linear down(Builder b, const ModelConfig& c, int64_t layer, const std::string& name) {
    return {b,
            {{name + "down_proj.weight", {c.hidden_size, c.intermediate_size}}},
            {.layer = layer, .std = residual_std(c)}};
  }

  Norm attention_norm_;
  SelfAttention attention_;
  Norm mlp_norm_;
  GatedMlp mlp_;
};

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
  return std::make_unique<LlamaBlock>(b, c, layer, rope_table);
}

}  // namespace octet::BACKEND
