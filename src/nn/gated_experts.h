#pragma once
// The experts of a layer that this rank holds, each a gated MLP: o = (silu(x W1^T) * (x W3^T)) W2^T, for rows sorted by
// expert.
// Dimension key:  C channels   F width of an expert   R rows of a buffer of experts' rows (ops/moe.h)
#include "nn/experts.h"

namespace octet::BACKEND {

struct MoeOptions {
  int64_t layer = 0, channels = 0, width = 0, experts = 0, per_token = 0;
  double jitter = 0;                       // relative noise on x in training
  double std = 0.02, residual_std = 0.02;  // of the initial weights; of those that write into the residual stream
  std::string name{};                      // prefix of the parameters: name.gate.weight, name.experts.0.w1.weight, ...
};

class GatedExperts {
 public:
  using Fill = std::function<void(Tensor /*(R,C)*/)>;  // writes all rows; unused ones become zero
  GatedExperts(Builder, const MoeOptions&);

  void open(Context&, int64_t R);  // allocates for a forward pass; each forward() until the next open() overwrites it
  void reopen(Context&);           // before a forward() in the backward pass: scratch again, in the caller's scope
  void forward(Context&, Tensor o /*(R,C)*/, const ExpertBuffer&, const Fill& x);
  void backward(Context&, Tensor dx /*(R,C)*/, const ExpertBuffer&, const Fill& d_o);  // of the last forward()

 private:
  ExpertLinear gate_up_, down_;
  Operand x_, h_;
  Tensor gu_{};  // (R,2F)
};

}  // namespace octet::BACKEND
