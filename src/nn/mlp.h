#pragma once
// Gated MLP (SwiGLU): y = Wd (silu(Wg x) * Wu x), arXiv:2002.05202.
// Dimension key:  N rows   C channels   F width
#include "nn/linear.h"

namespace octet::BACKEND {

class GatedMlp {
 public:
  GatedMlp(Linear gate_up, Linear down) : gate_up_(std::move(gate_up)), down_(std::move(down)) {}
  Operand input(Context& c, int64_t rows) const { return gate_up_.input(c, rows); }
  void forward(Context&, Tensor y /*(N,C)*/, const Operand& x /*(N,C)*/, Tensor residual);  // y = mlp(x) [+ residual]
  // y = mlp(norm(x)) + residual in a step of generation: Linear::step
  void step(Context&, Tensor y /*(N,C)*/, const Norm&, Tensor x /*(N,C)*/, Tensor residual);
  Tensor backward(Context&, Tensor dy /*(N,C)*/);  // -> dx (N,C), in scratch

 private:
  Linear gate_up_, down_;
  Tensor gu_{};  // (N,2F)
};

}  // namespace octet::BACKEND
