// Token embedding: forward copies rows, backward sums rows by token in a fixed order.
#include <algorithm>

#include "ops/cpu/rows.h"

namespace octet::BACKEND {

static void check_tokens(Tensor tokens, int64_t V) {
  const int32_t* id = tokens.ptr<int32_t>();
  for (int64_t n = 0; n < tokens.numel(); ++n) CHECK(id[n] >= 0 && id[n] < V, "token ", id[n], " of ", V);
}

void embedding_forward(Stream&, Tensor y, Tensor tokens, Tensor w) {
  const int64_t N = y.rows(), C = y.cols();
  CHECK(tokens.numel() == N && w.cols() == C, y.shape, " from ", w.shape);
  check_tokens(tokens, w.rows());
  const int32_t* id = tokens.ptr<int32_t>();
  visit_plain(y.dtype, [&]<class T>() {
    T* out = y.ptr<T>();
    const T* rows = w.ptr<T>();
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n) std::copy_n(rows + id[n] * C, C, out + n * C);
  });
}

void embedding_backward(Stream&, Tensor dw, Tensor dy, Tensor tokens, Tensor order) {
  const int64_t N = dy.rows(), C = dy.cols();
  CHECK(tokens.numel() == N && order.numel() == N && dw.cols() == C, dw.shape, " += ", dy.shape);
  check_tokens(tokens, dw.rows());
  const int32_t *id = tokens.ptr<int32_t>(), *rows = order.ptr<int32_t>();
  visit_plain(dy.dtype, [&]<class T>() {
    using R = Real<T>;
    const T* d = dy.ptr<T>();
    visit_plain(dw.dtype, [&]<class W>() {
      W* out = dw.ptr<W>();
#pragma omp parallel
      {
        const auto sum = buffer<R>(C);
#pragma omp for schedule(dynamic, 16)
        for (int64_t i = 0; i < N; ++i) {  // the first row of a token adds all rows of it
          const int32_t token = id[rows[i]];
          if (i > 0 && id[rows[i - 1]] == token) continue;
          std::fill_n(sum.get(), C, R(0));
          for (int64_t j = i; j < N && id[rows[j]] == token; ++j)
            for (int64_t c = 0; c < C; ++c) sum[c] += R(d[rows[j] * C + c]);
          W* row = out + token * C;
          for (int64_t c = 0; c < C; ++c) row[c] = W(Real<W>(R(Real<W>(row[c])) + sum[c]));
        }
      }
    });
  });
}

}  // namespace octet::BACKEND
