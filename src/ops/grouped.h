#pragma once
// The products of a layer's experts, each over its own rows of a buffer (ops/moe.h). Where those begin stands in device
// memory: no host waits for it. Experts without rows have no product.
// Dimension key:  E experts   R rows of the buffer   M, N, K as in gemm()
#include <span>

#include "ops/moe.h"

namespace octet::BACKEND {

struct ExpertRows {
  Tensor offset /*(E+1) i32*/;  // MoeRows::offset: multiples of kExpertRows
  int64_t assignments = 0;      // all rows without padding, which the plan engine deals out evenly
};

// d[r,:] = a[r,:] @ b_e^T * a.scale_inv_e * b_e.scale_inv for the rows r of expert e; 0 for those behind the last.
// Accumulates in fp32 (fp64 for f64); `fast` and the forms of factors as in gemm(). What stands in a's rows behind the
// last is never used. The forward product y = x W_e^T, and dx = dy W_e.
struct GroupedGemm {
  Tensor d /*(R,N)*/;
  Factor a /*(R,K)*/;
  std::span<const Factor> b /*E of (N,K)*/;
  ExpertRows rows;
  int64_t scale_step = 0;  // floats from an expert's a.scale_inv to the next one's; 0: they share one
  bool fast = false;
};
void grouped_gemm(Stream&, const GroupedGemm&);

// Over the rows r of expert e:  d_e[m,n] += sum_r a[m,r] b[n,r] * a.scale_inv_e * b.scale_inv_e.
// The gradient dW_e += dy_e^T x_e. An expert without rows leaves d_e as it is.
struct GroupedGradient {
  std::span<const Tensor> d /*E of (M,N) +=*/;
  Factor a /*(M,R)*/, b /*(N,R)*/;  // FP8: (M,R) and (N,R) as they are stored; else usually (R,M) and (R,N), transposed
  ExpertRows rows;
  int64_t scale_step = 0;
  bool fast = false;
};
void grouped_gradient(Stream&, const GroupedGradient&);

}  // namespace octet::BACKEND
