// Conversion, addition, initial values.
#include "base/rng.h"
#include "ops/gpu/vector.cuh"

namespace octet::BACKEND {

namespace {

constexpr int kRounds = 4, kThreads = 256, kBlock = kRounds * kThreads * 8;  // elements a block

template <class T>
__device__ inline Pack<T> load_within(const T* x, int64_t at, int64_t n, bool fast) {
  if (fast && at + 8 <= n) return load8(x + at);
  return load<false>(x + at, int(max(int64_t(0), min(int64_t(8), n - at))));
}
template <class T>
__device__ inline void store_within(T* y, const float (&v)[8], int64_t at, int64_t n, bool fast) {
  if (fast && at + 8 <= n) store8(y + at, pack<T>(v));
  else store<false>(y + at, v, int(max(int64_t(0), min(int64_t(8), n - at))));
}

template <class Y, class X>
__global__ void __launch_bounds__(kThreads) convert_kernel(Y* y, const X* x, int64_t n, bool fast) {
  const int64_t first = blockIdx.x * int64_t(kBlock) + threadIdx.x * 8;
  Pack<X> in[kRounds];
#pragma unroll
  for (int k = 0; k < kRounds; ++k) in[k] = load_within(x, first + k * kThreads * 8, n, fast);
#pragma unroll
  for (int k = 0; k < kRounds; ++k) {
    float v[8];
    unpack(v, in[k]);
    store_within(y, v, first + k * kThreads * 8, n, fast);
  }
}

template <class T, class U>
__global__ void __launch_bounds__(kThreads) add_kernel(T* y, const T* a, const U* b, int64_t n, bool fast) {
  const int64_t first = blockIdx.x * int64_t(kBlock) + threadIdx.x * 8;
  Pack<T> left[kRounds];
  Pack<U> right[kRounds];
#pragma unroll
  for (int k = 0; k < kRounds; ++k) {
    left[k] = load_within(a, first + k * kThreads * 8, n, fast);
    right[k] = load_within(b, first + k * kThreads * 8, n, fast);
  }
#pragma unroll
  for (int k = 0; k < kRounds; ++k) {
    float v[8], w[8];
    unpack(v, left[k]);
    unpack(w, right[k]);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] += w[j];
    store_within(y, v, first + k * kThreads * 8, n, fast);
  }
}

struct Normal {
  double mean, std;
  uint64_t seed, stream, first;
};
template <class T>
__global__ void __launch_bounds__(kThreads) normal_kernel(T* y, int64_t n, const Normal d) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i >= n) return;
  y[i] = T(float(d.std == 0 ? d.mean : d.mean + d.std * normal(d.seed, d.stream, d.first + uint64_t(i))));
}

}  // namespace

void convert(Stream& s, Tensor y, Tensor x) {
  const Timed timed(s, Kernel::elementwise);
  const int64_t N = y.numel();
  CHECK(x.numel() == N, y.shape, " = ", x.shape);
  if (N == 0) return;
  visit<float, f16, bf16>(y.dtype, [&]<class Y>() {
    visit<float, f16, bf16>(x.dtype, [&]<class X>() {
      convert_kernel<<<blocks_for(N, kBlock), kThreads, 0, raw(s)>>>(y.ptr<Y>(), x.ptr<X>(), N,
                                                                     aligned({y.data, x.data}));
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

void add(Stream& s, Tensor y, Tensor a, Tensor b) {
  const Timed timed(s, Kernel::elementwise);
  const int64_t N = y.numel();
  CHECK(a.numel() == N && b.numel() == N, y.shape, " = ", a.shape, " + ", b.shape);
  if (N == 0) return;
  visit<float, bf16>(y.dtype, [&]<class T>() {
    visit<float, bf16>(b.dtype, [&]<class U>() {
      add_kernel<<<blocks_for(N, kBlock), kThreads, 0, raw(s)>>>(y.ptr<T>(), a.ptr<T>(), b.ptr<U>(), N,
                                                                 aligned({y.data, a.data, b.data}));
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

void init_normal(Stream& s, Tensor y, double mean, double std, uint64_t seed, uint64_t stream, int64_t first) {
  const Timed timed(s, Kernel::elementwise);
  if (y.numel() == 0) return;
  visit<float, bf16>(y.dtype, [&]<class T>() {
    normal_kernel<<<blocks_for(y.numel(), kThreads), kThreads, 0, raw(s)>>>(
        y.ptr<T>(), y.numel(), Normal{mean, std, seed, stream, uint64_t(first)});
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace octet::BACKEND
