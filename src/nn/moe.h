#pragma once
// Sparse mixture of gated MLPs, dropless: y = sum_k w_k expert_k(x), the experts and weights by a router that is linear
// in x and computed in fp32.                             Jiang et al. 2024 (Mixtral), arXiv:2401.04088 Dimension key:
// N tokens   C channels   F width of an expert   E experts   K experts a token   R rows of all experts
#include "nn/experts.h"
#include "ops/moe.h"

namespace octet::BACKEND {

class Moe {
 public:
  struct Options {
    int64_t layer = 0, channels = 0, width = 0, experts = 0, per_token = 0;
    double jitter = 0;                       // relative noise on x in training
    double std = 0.02, residual_std = 0.02;  // of the initial weights; of those that write into the residual stream
    std::string name{};  // prefix of the parameters: name.gate.weight, name.experts.0.w1.weight, ...
  };
  Moe(Builder, const Options&);
  Operand input(Context& c, int64_t rows) const;  // plain: the router reads it, and each expert its tokens' rows
  void forward(Context&, Tensor y /*(N,C)*/, const Operand& x /*(N,C)*/, Tensor residual);  // y = moe(x) [+ residual]
  Tensor backward(Context&, Tensor dy /*(N,C)*/);                                           // -> dx (N,C), in scratch

 private:
  void jitter(Context&, Tensor x) const;
  void route(Context&, Tensor x);
  void route_backward(Context&, Tensor dx /*(N,C) +=*/, Tensor dweight /*(N,K)*/);
  int64_t buffer_rows(int64_t N) const { return expert_rows(N, options_.experts, options_.per_token); }

  Options options_;
  Param router_;  // (E,C)
  ExpertLinear gate_up_, down_;
  // Of the last forward pass.
  Tensor x_{}, gu_{} /*(R,2F)*/, o_{} /*(R,C)*/;
  MoeRoute route_{};
  MoeRows rows_{};
  ExpertRows used_{};
};

}  // namespace octet::BACKEND
