#pragma once
// OpenBLAS on one thread. Parallel loops around it divide the work in a way that does not depend
// on the number of threads.
#include <cblas.h>

#include <algorithm>

#include "base/check.h"

namespace octet::BACKEND {

template <class R>
struct Matrix {  // row-major; transposed: it is the transpose of what is stored
  R* data;
  int64_t ld;
  bool transposed = false;
};
struct Extent {
  int64_t m, n, k;
};

void prepare_blas();

// d (m,n) = alpha * a (m,k) @ b (k,n) + beta * d
template <class R>
void multiply(Extent e, R alpha, Matrix<const R> a, Matrix<const R> b, R beta, Matrix<R> d) {
  prepare_blas();
  constexpr int64_t kLimit = int64_t{1} << 31;
  CHECK(std::max({e.m, e.n, e.k, a.ld, b.ld, d.ld}) < kLimit, "too large for OpenBLAS: ", e.m, " ", e.n, " ", e.k);
  if (e.m == 0 || e.n == 0) return;
  const auto mode = [](bool t) { return t ? CblasTrans : CblasNoTrans; };
  const auto call = [&](auto* gemm) {
    gemm(CblasRowMajor, mode(a.transposed), mode(b.transposed), int(e.m), int(e.n), int(e.k), alpha, a.data, int(a.ld),
         b.data, int(b.ld), beta, d.data, int(d.ld));
  };
  if constexpr (sizeof(R) == 8) call(cblas_dgemm);
  else call(cblas_sgemm);
}

}  // namespace octet::BACKEND
