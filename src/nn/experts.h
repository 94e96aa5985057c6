#pragma once
// ExpertLinear: y = x W_e^T for the rows of each expert e of a layer. Experts share one scale of activations and one of
// gradients; each has its own scale of weights. Where an expert's rows begin is known on the device alone, so that
// everything here works on the whole buffer: rows behind the last in use are zero (ops/grouped.h).
// Dimension key:  E experts   R rows of a buffer of experts' rows (ops/moe.h)   I in   O out
#include "nn/linear.h"
#include "ops/grouped.h"

namespace octet::BACKEND {

class ExpertLinear {
 public:
  struct Options {
    int64_t layer = 0;  // of the model, for the recipe
    double std = 0.02;  // of the initial weights
  };
  // parts[e]: the matrices of expert e, one above the other.
  ExpertLinear(Builder, const std::vector<std::vector<ParameterStore::Part>>& parts, const Options&);

  Operand input(Context&, int64_t R) const;  // operands of R rows, for their producers to fill
  Operand output_grad(Context&, int64_t R) const;

  void forward(Context&, Tensor y /*(R,O)*/, const Operand& x /*(R,I)*/, const ExpertRows&);
  void backward(Context&, Tensor dx /*(R,I)*/, const Operand& dy /*(R,O)*/, const ExpertRows&);
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
