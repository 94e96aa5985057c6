#pragma once
// Column sums over a fixed number of row chunks, which are added in order: the same bits for any number of threads.
#include "ops/cpu/rows.h"
#include "ops/workspace.h"

namespace octet::BACKEND {

// Calls body(n, sums) for n = 0..N-1, which adds row n to sums (width) of its chunk: a row of partial (P,
// width), which is overwritten.
template <class R, class F>
void sum_chunks(const Stream& s, Tensor partial, int64_t N, int64_t width, F&& body) {
  const int64_t P = partial_rows(s.target());
  CHECK(partial.numel() >= P * width, "partial ", partial.shape, " for ", P, " rows of ", width);
  R* all = partial.ptr<R>();
#pragma omp parallel for schedule(dynamic)
  for (int64_t p = 0; p < P; ++p) {
    R* sums = all + p * width;
    for (int64_t c = 0; c < width; ++c) sums[c] = 0;
    for (int64_t n = N * p / P; n < N * (p + 1) / P; ++n) body(n, sums);
  }
}

// total (C) += sum of `rows` rows of partial, `stride` apart.
template <class R>
void add_chunks(Tensor total, const R* partial, int64_t rows, int64_t stride) {
  visit_plain(total.dtype, [&]<class T>() {
    T* y = total.ptr<T>();
#pragma omp parallel for
    for (int64_t c = 0; c < total.numel(); ++c) {
      R sum = 0;
      for (int64_t p = 0; p < rows; ++p) sum += partial[p * stride + c];
      y[c] = T(Real<T>(R(Real<T>(y[c])) + sum));
    }
  });
}

}  // namespace octet::BACKEND
