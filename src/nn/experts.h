#pragma once
// ExpertLinear: y = x W_e^T for the rows of each expert e of a layer. Experts share one scale of activations and one of
// gradients; each has its own scale of weights. The products are a loop over experts whose row counts the host knows.
// Dimension key:  E experts   R rows of a buffer of experts' rows (ops/moe.h)   I in   O out
#include "nn/linear.h"

namespace octet::BACKEND {

using ExpertOffsets = std::vector<int64_t>;  // (E+1): first row of each expert, and behind the last

// A buffer's rows that are in use: what producers fill. What lies behind them is never read.
inline Tensor used(Tensor t, const ExpertOffsets& first) { return t ? t.row_range(0, first.back()) : t; }
inline Operand used(const Operand& x, const ExpertOffsets& first) {
  return {.plain = used(x.plain, first), .q = used(x.q, first), .scale_inv = x.scale_inv, .slot = x.slot};
}

class ExpertLinear {
 public:
  struct Options {
    int64_t layer = 0;  // of the model, for the recipe
    double std = 0.02;  // of the initial weights
  };
  // parts[e]: the matrices of expert e, one above the other.
  ExpertLinear(Builder, const std::vector<std::vector<ParameterStore::Part>>& parts, const Options&);

  // Operands of R rows, each expert's transposed form by itself: (I, its rows) from element offset * I on. Producers
  // fill used(...) of them and call finish(). With plain: what only writes the plain form, whose others finish() makes.
  Operand input(Context&, int64_t R) const;
  Operand output_grad(Context&, int64_t R) const;
  void finish(Context&, const Operand&, const ExpertOffsets&) const;        // transposes of the codes
  void finish_plain(Context&, const Operand&, const ExpertOffsets&) const;  // codes, and their transposes

  void forward(Context&, Tensor y /*(R,O)*/, const Operand& x /*(R,I)*/, const ExpertOffsets&);
  void backward(Context&, Tensor dx /*(R,I)*/, const Operand& dy /*(R,O)*/, const ExpertOffsets&);
  int64_t in() const { return w_[0].shape[1]; }
  int64_t out() const { return w_[0].shape[0]; }

 private:
  Forms input_forms(const Context&) const;
  LinearRecipe recipe_;
  std::vector<Param> w_;
  int x_slot_ = -1, dy_slot_ = -1;
  Operand x_;  // of the last forward pass
};

}  // namespace octet::BACKEND
