#pragma once
// The products of experts as three plain loops, in f64, for the tests of every engine. Matrices are row-major.
#include <cstdint>
#include <vector>

namespace octet::grouped_reference {

using Values = std::vector<double>;

inline constexpr int64_t kStep = 32;  // what experts' rows are filled up to
inline std::vector<int32_t> offsets(const std::vector<int>& tokens) {
  std::vector<int32_t> first{0};
  for (int n : tokens) first.push_back(first.back() + int32_t((n + kStep - 1) / kStep * kStep));
  return first;
}
inline int64_t expert_of(const std::vector<int32_t>& offset, int64_t row) {  // -1: behind the last
  for (size_t e = 0; e + 1 < offset.size(); ++e)
    if (row >= offset[e] && row < offset[e + 1]) return int64_t(e);
  return -1;
}

// d (R,N): a (R,K), b of each expert (N,K)
inline Values rows_product(const std::vector<int32_t>& offset, const Values& a, const std::vector<Values>& b, int64_t N,
                           int64_t K) {
  const int64_t R = int64_t(a.size()) / K;
  Values d(size_t(R * N));
  for (int64_t r = 0; r < R; ++r) {
    const int64_t e = expert_of(offset, r);
    for (int64_t n = 0; n < N && e >= 0; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += a[size_t(r * K + k)] * b[size_t(e)][size_t(n * K + k)];
      d[size_t(r * N + n)] = sum;
    }
  }
  return d;
}
// d of expert e (M,N): a (R,M), b (R,N)
inline Values sums_product(const std::vector<int32_t>& offset, int64_t e, const Values& a, const Values& b, int64_t M,
                           int64_t N) {
  Values d(size_t(M * N));
  for (int64_t r = offset[size_t(e)]; r < offset[size_t(e) + 1]; ++r)
    for (int64_t m = 0; m < M; ++m)
      for (int64_t n = 0; n < N; ++n) d[size_t(m * N + n)] += a[size_t(r * M + m)] * b[size_t(r * N + n)];
  return d;
}

inline Values transposed(const Values& x, int64_t rows, int64_t cols) {
  Values y(x.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) y[size_t(c * rows + r)] = x[size_t(r * cols + c)];
  return y;
}

}  // namespace octet::grouped_reference
