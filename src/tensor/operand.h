#pragma once
// Operand: one matrix of a product, in any subset of the forms that the products reading it want.
#include "tensor/tensor.h"

namespace octet {

enum class Precision : uint8_t { plain, fp8 };

struct Slot {  // device scalars of one quantised tensor; amax null: do not measure (recomputation, evaluation)
  float* scale = nullptr;
  uint32_t* amax = nullptr;  // bits of max |x|: non-negative floats order like their bits, and NaN > inf > finite
  DType format = DType::e4m3;
};
struct Forms {
  bool plain = false, q = false, q_t = false;
};

struct Factor {  // a GEMM reads a (rows, K) matrix; `transposed` says that t is stored as (K, rows)
  Tensor t;
  bool transposed = false;
  const float* scale_inv = nullptr;
  int64_t rows() const { return transposed ? t.cols() : t.rows(); }
  int64_t contracted() const { return transposed ? t.rows() : t.cols(); }
};

struct Operand {
  Tensor plain, q, q_t;        // (N,C), (N,C), (C,N)
  float* scale_inv = nullptr;  // of *this* quantisation, written with it: slot.scale moves on, the stored bytes do not
  Slot slot;
  int64_t rows() const { return q_t ? q_t.cols() : q ? q.rows() : plain.rows(); }
  int64_t cols() const { return q_t ? q_t.rows() : q ? q.cols() : plain.cols(); }
  Factor by_cols(Precision p) const {  // to be contracted over C
    const Tensor t = p == Precision::fp8 ? q : plain;
    CHECK(t, "this operand has no such form");
    return {t, false, p == Precision::fp8 ? scale_inv : nullptr};
  }
  Factor by_rows(Precision p) const {  // to be contracted over N
    const Tensor t = p == Precision::fp8 ? q_t : plain;
    CHECK(t, "this operand has no such form");
    return {t, p == Precision::plain, p == Precision::fp8 ? scale_inv : nullptr};
  }
};

}  // namespace octet
