#pragma once
// Sparse mixture of gated MLPs, dropless: y = sum_k w_k expert_k(x), the experts and weights by a router that is linear
// in x and computed in fp32.                             Jiang et al. 2024 (Mixtral), arXiv:2401.04088 Dimension key:
// N tokens   C channels   E experts   K experts a token   R rows of all experts
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

  struct Unpin {
    void operator()(int32_t* p) const noexcept { pinned_free(p); }
  };
  Options options_;
  Param router_;  // (E,C)
  GatedExperts experts_;
  std::unique_ptr<ExpertDispatch> dispatch_;  // where experts are spread over ranks
  bool knows_offsets_;                        // on the host, for casts expert by expert
  std::unique_ptr<int32_t, Unpin> pinned_;    // of the offsets on their way there
  // Of the last forward pass.
  Tensor x_{}, o_{} /*(R,C)*/;
  MoeRoute route_{};
  MoeRows rows_{};
  ExpertBuffer used_;
};

}  // namespace octet::BACKEND
