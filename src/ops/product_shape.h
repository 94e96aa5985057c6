#pragma once
// The ProductShape of a call of gemm(): the key of the plan engine's list and of the gpu engine's plan cache.
#include "config/product.h"
#include "ops/ops.h"

namespace octet::BACKEND {

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
          .residual = bool(g.residual),
          .bias = bool(g.bias),
          .fast = g.fast};
}

}  // namespace octet::BACKEND
