// Cross-entropy over a row of logits, and its gradient in place of the logits.
#include "ops/cpu/fast_math.h"

namespace octet::BACKEND {

void cross_entropy(Stream&, Tensor losses, Tensor logits, Tensor targets, int64_t vocabulary, LossFactor f,
                   Backward backward) {
  const int64_t N = logits.rows(), V = logits.cols();
  CHECK(losses.numel() == N && targets.numel() == N && vocabulary <= V, logits.shape, ", targets ", targets.shape);
  const double factor = f.scale ? f.value * double(*f.scale) : f.value;
  const int32_t* target = targets.ptr<int32_t>();
  for (int64_t n = 0; n < N; ++n) CHECK(target[n] < vocabulary, "target ", target[n], " of ", vocabulary);
  visit_plain(logits.dtype, [&]<class T>() {
    using R = Real<T>;
    T* x = logits.ptr<T>();
    R* loss = losses.ptr<R>();
#pragma omp parallel
    {
      const auto v = buffer<R>(V);
#pragma omp for schedule(static)
      for (int64_t n = 0; n < N; ++n) {
        T* row = x + n * V;
        if (target[n] < 0) {
          loss[n] = 0;
          if (backward == Backward::yes) std::fill_n(row, V, T(R(0)));
          continue;
        }
        widen(v.get(), row, vocabulary);
        const R m = largest_of(v.get(), vocabulary), hit = v[target[n]];
        const R sum = exp_row(v.get(), vocabulary, m);
        loss[n] = m + std::log(sum) - hit;
        if (backward == Backward::no) continue;
        const R share = R(factor) / sum;
        for (int64_t c = 0; c < vocabulary; ++c) v[c] *= share;
        v[target[n]] -= R(factor);
        std::fill(v.get() + vocabulary, v.get() + V, R(0));
        narrow(row, v.get(), V);
      }
    }
  });
}

}  // namespace octet::BACKEND
