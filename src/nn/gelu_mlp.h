#pragma once
// MLP with GELU and biases: y = Wd gelu(Wu x + bu) + bd, arXiv:1606.08415.
// Dimension key:  N rows   C channels   F width
#include "nn/linear.h"

namespace octet::BACKEND {

class GeluMlp {
 public:
  GeluMlp(Linear up, Linear down, Gelu kind) : up_(std::move(up)), down_(std::move(down)), kind_(kind) {}
  Operand input(Context& c, int64_t rows) const { return up_.input(c, rows); }
  void forward(Context&, Tensor y /*(N,C)*/, const Operand& x /*(N,C)*/, Tensor residual);  // y = mlp(x) [+ residual]
  Tensor backward(Context&, Tensor dy /*(N,C)*/);                                           // -> dx (N,C), in scratch

 private:
  Linear up_, down_;
  Gelu kind_;
  Tensor u_{};  // (N,F), before the activation
};

}  // namespace octet::BACKEND
