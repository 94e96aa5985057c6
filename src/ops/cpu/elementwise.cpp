// Conversion, addition, initial values.
#include "base/rng.h"
#include "ops/cpu/rows.h"

namespace octet::BACKEND {

static constexpr int64_t kBlock = 4096;  // elements a thread takes at a time

void convert(Stream&, Tensor y, Tensor x) {
  const int64_t N = y.numel();
  CHECK(x.numel() == N, y.shape, " = ", x.shape);
  visit<double, float, f16, bf16>(y.dtype, [&]<class Y>() {
    visit<double, float, f16, bf16>(x.dtype, [&]<class X>() {
      Y* out = y.ptr<Y>();
      const X* in = x.ptr<X>();
#pragma omp parallel for
      for (int64_t i = 0; i < N; ++i) out[i] = Y(Real<Y>(Real<X>(in[i])));
    });
  });
}

void add(Stream&, Tensor y, Tensor a, Tensor b) {
  const int64_t N = y.numel();
  CHECK(a.numel() == N && b.numel() == N, y.shape, " = ", a.shape, " + ", b.shape);
  visit_plain(y.dtype, [&]<class T>() {
    visit_plain(b.dtype, [&]<class U>() {
      using R = std::conditional_t<std::is_same_v<U, double>, double, Real<T>>;
      T* out = y.ptr<T>();
      const T* p = a.ptr<T>();
      const U* q = b.ptr<U>();
#pragma omp parallel for
      for (int64_t i = 0; i < N; ++i) out[i] = T(Real<T>(R(Real<T>(p[i])) + R(Real<U>(q[i]))));
    });
  });
}

void init_normal(Stream&, Tensor y, double mean, double std, uint64_t seed, uint64_t stream, int64_t first) {
  const int64_t N = y.numel();
  visit_plain(y.dtype, [&]<class T>() {
    T* out = y.ptr<T>();
#pragma omp parallel for
    for (int64_t i0 = 0; i0 < N; i0 += kBlock)
      for (int64_t i = i0; i < std::min(N, i0 + kBlock); ++i)
        out[i] = T(Real<T>(std == 0 ? mean : mean + std * normal(seed, stream, uint64_t(first + i))));
  });
}

}  // namespace octet::BACKEND
