// Sums in a fixed order.
#include "ops/cpu/chunks.h"

namespace octet::BACKEND {

void sum(Stream&, Tensor total, Tensor x) {
  visit_plain(x.dtype, [&]<class T>() {
    const T* v = x.ptr<T>();
    *total.ptr<double>() += lane_sum<double>(x.numel(), [=](int64_t i) { return double(Real<T>(v[i])); });
  });
}

void column_sum(Stream& s, Tensor total, Tensor x, Tensor partial) {
  const int64_t C = x.cols();
  CHECK(total.numel() == C, total.shape, " += columns of ", x.shape);
  visit_plain(x.dtype, [&]<class T>() {
    using R = Real<T>;
    const T* v = x.ptr<T>();
    sum_chunks<R>(s, partial, x.rows(), C, [=](int64_t n, R* sums) {
      for (int64_t c = 0; c < C; ++c) sums[c] += R(v[n * C + c]);
    });
    add_chunks(total, partial.ptr<R>(), partial_rows(s.target()), C);
  });
}

void sum_of_squares(Stream& s, Tensor total, Tensor x, Tensor partial) {
  const int64_t N = x.numel(), P = partial_sums(s.target());
  CHECK(partial.numel() >= P, "partial ", partial.shape, " of ", P);
  double* sums = partial.ptr<double>();
  visit_plain(x.dtype, [&]<class T>() {
    const T* v = x.ptr<T>();
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < P; ++p) {
      const int64_t first = N * p / P;
      const T* part = v + first;
      sums[p] = lane_sum<double>(N * (p + 1) / P - first, [=](int64_t i) {
        const double value = double(Real<T>(part[i]));
        return value * value;
      });
    }
  });
  for (int64_t p = 0; p < P; ++p) *total.ptr<double>() += sums[p];
}

}  // namespace octet::BACKEND
