#pragma once
// Grouped matrix products: those of a layer's experts, each over its own rows of one buffer (ops/moe.h). The offsets of
// the rows are in device memory: a Hopper card reads them there, so that the host does not wait for the routing.
// Dimension key:  E experts   R rows of the buffer   M, N, K as in gemm()
#include <span>

#include "ops/moe.h"

namespace octet::BACKEND {

struct ExpertRows {
  Tensor offset /*(E+1) i32*/;  // MoeRows::offset: multiples of kExpertRows
  int64_t assignments = 0;      // rows without padding; the plan engine, which knows no offsets, spreads them evenly
};

// The forward product y = x W_e^T, and dx = dy W_e:
//   d[r,:] = a[r,:] @ b_e^T * a.scale_inv_e * b_e.scale_inv for the rows r of expert e; 0 in unused rows.
// Accumulates in fp32 (fp64 for f64); `fast` and the layouts of factors as in gemm(). Rows of a after the last used one
// may hold anything.
struct GroupedGemm {
  Tensor d /*(R,N)*/;
  Factor a /*(R,K)*/;
  std::span<const Factor> b /*E of (N,K)*/;
  ExpertRows rows;
  int64_t scale_step = 0;  // floats between the a.scale_inv of consecutive experts; 0: all share one
  bool fast = false;
};
void grouped_gemm(Stream&, const GroupedGemm&);

// The weight gradient dW_e += dy_e^T x_e:
//   d_e[m,n] += sum_r a[m,r] b[n,r] * a.scale_inv_e * b.scale_inv_e over the rows r of expert e.
// The d_e of an expert without rows stays as it is, and its scales are not read. first_term: the d_e hold nothing yet
// and are overwritten, where an expert has no rows by zeros.
struct GroupedGradient {
  std::span<const Tensor> d /*E of (M,N) +=*/;
  Factor a /*(M,R)*/, b /*(N,R)*/;  // FP8 is stored so, contiguous along R; bf16 is stored as (R,M) and (R,N)
  ExpertRows rows;
  int64_t scale_step = 0;
  bool fast = false, first_term = false;
};
void grouped_gradient(Stream&, const GroupedGradient&);

}  // namespace octet::BACKEND
