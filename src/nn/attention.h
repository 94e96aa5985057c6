#pragma once
// Multi-head causal self-attention with rotary embedding and grouped kv heads (GQA, Ainslie et al. 2023,
// arXiv:2305.13245); in generation, over a KV cache.
// Dimension key:  N rows (= B*T)   C channels
#include "nn/linear.h"

namespace octet::BACKEND {

struct AttentionConfig {
  Heads heads;
  int64_t layer = 0, channels = 0, window = 0;
  double scale = 1;
};

class SelfAttention {
 public:
  SelfAttention(const AttentionConfig& config, Linear qkv, Linear out, const Tensor& rope_table)
      : config_(config), qkv_(std::move(qkv)), out_(std::move(out)), table_(rope_table) {}
  Operand input(Context& c, int64_t rows) const { return qkv_.input(c, rows); }
  // y = attention(x) [+ residual]
  void forward(Context&, Tensor y /*(N,C)*/, const Operand& x /*(N,C)*/, Tensor residual);
  // y = x + attention(norm(x)) in a step of generation: Linear::step
  void step(Context&, Tensor y /*(N,C)*/, const Norm&, Tensor x /*(N,C)*/);
  Tensor backward(Context&, Tensor dy /*(N,C)*/);  // -> dx (N,C), in scratch

 private:
  void open(Context&);  // memory for what backward needs
  void attend(Context&);
  void attend_to_cache(Context&);
  Rope rope(const Context& c) const {
    return {.table = table_, .heads = config_.heads, .T = c.T, .rounded = c.rounded_angles};
  }
  Attention shape(const Context& c) const {
    return {.heads = config_.heads,
            .B = c.B,
            .T = c.T,
            .window = config_.window,
            .scale = config_.scale,
            .documents = c.documents};
  }
  AttentionConfig config_;
  Linear qkv_, out_;
  const Tensor& table_;  // (positions, R/2, 2): the model's, filled after the layers are built
  Tensor qkv_saved_{}, o_{}, lse_{};
};

}  // namespace octet::BACKEND
