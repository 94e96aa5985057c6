#pragma once
// The ProductShape of a call of gemm(), by which the plan engine lists products and the gpu engine caches their plans;
// and the kernel class of a product.
#include "config/product.h"
#include "ops/ops.h"

namespace octet::BACKEND {

inline Kernel product_class(DType factor) {
  if (is_fp8(factor)) return Kernel::gemm_fp8;
  return factor == DType::bf16 || factor == DType::f16 ? Kernel::gemm_bf16 : Kernel::gemm_f32;
}

// The only dtype of bias that cuBLASLt's epilogue adds to d, for these factors.
inline DType epilogue_bias(DType factor, DType d) { return is_fp8(factor) ? DType::bf16 : d; }

// The product as cuBLASLt computes it: without options of no effect (fast accumulation is FP8's alone) and without what
// a kernel of ours adds (a bias of another dtype; the residual, where d is accumulated into).
inline ProductShape shape_of(const GemmArgs& g) {
  return {.M = g.a.rows(),
          .N = g.b.rows(),
          .K = g.a.contracted(),
          .a = g.a.t.dtype,
          .b = g.b.t.dtype,
          .d = g.d.dtype,
          .a_transposed = g.a.transposed,
          .b_transposed = g.b.transposed,
          .accumulate = g.accumulate,
          .residual = g.residual && !g.accumulate,
          .bias = g.bias && g.bias.dtype == epilogue_bias(g.a.t.dtype, g.d.dtype),
          .fast = g.fast && is_fp8(g.a.t.dtype)};
}

}  // namespace octet::BACKEND
