#pragma once
// Operand: one matrix in any subset of the forms that the matrix products reading it want: the plain type (bf16, fp32),
// FP8, FP8 transposed.
#include "tensor/tensor.h"

namespace octet {

enum class Precision : uint8_t { plain, fp8 };

// The FP8 scale of one quantised tensor. Its codes, the stored bytes, are round(x * *scale). amax null: do not measure
// (recomputation, evaluation).
struct Slot {
  float* scale = nullptr;
  uint32_t* amax = nullptr;  // bits of max |x|: non-negative floats order like their bits, and NaN > inf > finite
  DType format = DType::e4m3;
};
struct Forms {  // which of an operand's forms
  bool plain = false, q = false, q_t = false;
};

struct Factor {  // a (rows, K) matrix as gemm() reads it; transposed: t is stored as (K, rows)
  Tensor t;
  bool transposed = false;
  const float* scale_inv = nullptr;
  int64_t rows() const { return transposed ? t.cols() : t.rows(); }
  int64_t contracted() const { return transposed ? t.rows() : t.cols(); }
};

struct Operand {
  Tensor plain, q, q_t;        // (N,C), (N,C), (C,N); q and q_t are FP8 codes
  float* scale_inv = nullptr;  // 1 / the scale these codes were cast with: slot.scale changes with every update
  Slot slot;
  int64_t rows() const { return q_t ? q_t.cols() : q ? q.rows() : plain.rows(); }
  int64_t cols() const { return q_t ? q_t.rows() : q ? q.cols() : plain.cols(); }
  Factor by_cols(Precision p) const {  // to be contracted over its columns, C
    const Tensor t = p == Precision::fp8 ? q : plain;
    CHECK(t, "this operand has no such form");
    return {t, false, p == Precision::fp8 ? scale_inv : nullptr};
  }
  Factor by_rows(Precision p) const {  // to be contracted over its rows, N
    const Tensor t = p == Precision::fp8 ? q_t : plain;
    CHECK(t, "this operand has no such form");
    return {t, p == Precision::plain, p == Precision::fp8 ? scale_inv : nullptr};
  }
};

}  // namespace octet
