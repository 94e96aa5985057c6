#pragma once
// Sparse mixture of gated MLPs, dropless: y = sum_k w_k expert_k(x) over the K experts that a router chooses, whose
// logits are a linear function of x, computed in fp32.                   Jiang et al. 2024 (Mixtral), arXiv:2401.04088
// Dimension key:  N tokens   C channels   E experts   K experts a token   R rows of a buffer of experts' rows
#include "nn/expert_dispatch.h"

namespace octet::BACKEND {

class Moe {
 public:
  using Options = MoeOptions;
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
  GatedExperts experts_;
  std::unique_ptr<ExpertDispatch> dispatch_;  // with expert parallelism, else null
  bool host_needs_offsets_;                   // to cast expert by expert
  PinnedArray<int32_t> pinned_;               // (E+1): for these offsets
  // Of the last forward pass.
  Tensor x_{}, o_{} /*(R,C)*/;
  MoeRoute route_{};
  MoeRows rows_{};
  ExpertBuffer used_;
};

}  // namespace octet::BACKEND
