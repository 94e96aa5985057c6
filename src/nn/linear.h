#pragma once
// Linear: y = x W^T (+ b), and its three products: fprop, dgrad, wgrad. W may be several parameters stacked along O
// (q, k, v; gate, up).
// Dimension key:  N rows   I in   O out
#include "nn/norm.h"

namespace octet::BACKEND {

class Linear {
 public:
  struct Options {
    int64_t layer = 0;   // of the model, for the recipe
    double std = 0.02;   // of the initial weights
    std::string bias{};  // name of the bias parameter, or none
  };
  Linear(Builder, const std::vector<ParameterStore::Part>&, const Options&);

  // Memory for x (N,I) and dy (N,O) in the forms that the products read, for the kernels that produce them to fill.
  Operand input(Context&, int64_t rows) const;
  Operand output_grad(Context&, int64_t rows) const;
  // The same, but a plain form, if any product reads it, is `buffer` itself: for a producer that works in place.
  Operand output_grad_in_place(Context&, Tensor buffer /*(N,O)*/) const;
  // For a producer that has written the plain form only: makes the other forms from it.
  Operand input(Context&, Tensor x) const;
  Operand output_grad(Context&, Tensor dy) const;

  // y = x W^T [+ b] [+ residual]
  void forward(Context&, Tensor y /*(N,O)*/, const Operand& x /*(N,I)*/, Tensor residual = {});
  // A step of generation, with the RMSNorm before it and perhaps SwiGLU after it in one operation:
  // y = rmsnorm(x) W^T, or y = swiglu(rmsnorm(x) W^T).
  enum class Epilogue : uint8_t { none, swiglu };
  void step(Context&, Tensor y /*(N,O) or (N,O/2)*/, const Norm&, Tensor x /*(N,I)*/, Epilogue = Epilogue::none);
  void backward(Context&, Tensor dx /*(N,I)*/, const Operand& dy /*(N,O)*/);  // dx = dy W,  dW += dy^T x,  db += sum dy
  int64_t in() const { return w_.shape[1]; }
  int64_t out() const { return w_.shape[0]; }
  const LinearRecipe& recipe() const { return recipe_; }

 private:
  Forms input_forms(const Context&) const;
  Forms output_grad_forms() const;
  LinearRecipe recipe_;
  Param w_, b_;
  int x_slot_ = -1, dy_slot_ = -1;
  Operand x_;  // of the last forward pass
};

}  // namespace octet::BACKEND
