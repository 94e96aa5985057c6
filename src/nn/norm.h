#pragma once
// Normalisation over the last dimension: RMSNorm, arXiv:1910.07467, or LayerNorm, arXiv:1607.06450.
// Dimension key:  N rows   C channels
#include "nn/context.h"

namespace octet::BACKEND {

class Norm {
 public:
  enum class Kind : uint8_t { rms, layer };
  struct Options {
    Kind kind = Kind::rms;
    int64_t channels = 0;
    double eps = 1e-5;
  };
  // Declares name.weight, and name.bias of a LayerNorm.
  Norm(Builder b, const std::string& name, const Options& options);
  void forward(Context&, const Operand& y /*(N,C)*/, Tensor x /*(N,C)*/);
  void backward(Context&, Tensor dx /*(N,C) +=*/, Tensor dy /*(N,C)*/);  // +=: dx is the residual stream's gradient
  const Options& options() const { return options_; }
  Tensor weight(const Context& c) const { return c.params.value(w_).plain; }

 private:
  Options options_;
  Param w_, b_;
  Tensor x_{}, mean_{}, rstd_{};
};

}  // namespace octet::BACKEND
