// Cross-entropy, one thread block a row. The first pass finds maximum and sum together (online softmax, Milakov &
// Gimelshein 2018, arXiv:1805.02867) and keeps the row in shared memory if it fits; the second overwrites the
// logits by their gradient.
#include "device/gpu_code.h"
#include "ops/gpu/instructions.cuh"
#include "ops/gpu/reduce.cuh"

namespace octet::BACKEND {

namespace {

constexpr int kThreads = 512;

template <class T>
struct Rows {
  float* losses;
  T* logits;
  const int32_t* targets;
  int V, vocabulary;
  float factor;
  const float* scale;  // multiplies factor, unless null
  bool backward;
};

// exp(x - m). For bf16 by the hardware's 2^x, relative error about 1e-6.
template <class T>
__device__ inline float exp_of(float x, float m) {
  if constexpr (sizeof(T) == 4) return expf(x - m);
  else return exp2_approx((x - m) * kLog2e);  // exactly 1 where x == m
}
__device__ inline void mask_padding(float (&v)[8], int first, int vocabulary) {
  if (first + 8 <= vocabulary) return;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (first + j >= vocabulary) v[j] = -INFINITY;
}
template <class T>
__device__ inline void take(float& m, float& sum, const float (&v)[8]) {
  float top = v[0];
#pragma unroll
  for (int j = 1; j < 8; ++j) top = fmaxf(top, v[j]);
  if (top > m) sum *= exp_of<T>(m, top), m = top;
#pragma unroll
  for (int j = 0; j < 8; ++j) sum += exp_of<T>(v[j], m);
}
template <class T>
__device__ inline void merge(float& m, float& sum, float m2, float sum2) {
  const float top = fmaxf(m, m2);
  sum = sum * exp_of<T>(m, top) + sum2 * exp_of<T>(m2, top);
  m = top;
}

template <class T>
__device__ void block_softmax(float& m, float& sum) {  // (maximum, sum of exp) of the row
  __shared__ float maxima[kThreads / 32], sums[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int o = 16; o; o /= 2) {
    const float m2 = __shfl_xor_sync(~0u, m, o), sum2 = __shfl_xor_sync(~0u, sum, o);
    merge<T>(m, sum, m2, sum2);
  }
  if (lane == 0) maxima[warp] = m, sums[warp] = sum;
  __syncthreads();
  m = maxima[lane % (kThreads / 32)], sum = sums[lane % (kThreads / 32)];
#pragma unroll
  for (int o = kThreads / 64; o; o /= 2) {
    const float m2 = __shfl_xor_sync(~0u, m, o), sum2 = __shfl_xor_sync(~0u, sum, o);
    merge<T>(m, sum, m2, sum2);
  }
}

template <class T, bool kFast, bool kKeep>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 3 : 2) cross_entropy_kernel(const Rows<T> a) {
  extern __shared__ uint4 dynamic[];
  auto* kept = reinterpret_cast<Pack<T>*>(dynamic);
  constexpr int kUnroll = sizeof(T) == 2 ? 4 : 2;
  const int64_t n = blockIdx.x;
  const int vectors = (a.V + 7) / 8, target = a.targets[n];
  T* row = a.logits + n * a.V;
  const auto count = [&](int v) { return min(8, a.V - v * 8); };
  if (target < 0) {
    const float zero[8] = {};
    if (threadIdx.x == 0) a.losses[n] = 0;
    if (a.backward)
      for (int v = threadIdx.x; v < vectors; v += kThreads) store<kFast>(row + v * 8, zero, count(v));
    return;
  }
  const float hit = target < a.vocabulary ? float(row[target]) : NAN;  // read before anything is written
  float m = -1e30f, sum = 0;  // below any logit, and m * log2(e) stays finite: inf - inf would be NaN
  for (int v0 = threadIdx.x; v0 < vectors; v0 += kUnroll * kThreads) {
    Pack<T> x[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (const int v = v0 + k * kThreads; v < vectors) x[k] = load<kFast>(row + v * 8, count(v));
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int v = v0 + k * kThreads;
      if (v >= vectors) break;
      if constexpr (kKeep) kept[v] = x[k];
      float values[8];
      unpack(values, x[k]);
      mask_padding(values, v * 8, a.vocabulary);
      take<T>(m, sum, values);
    }
  }
  block_softmax<T>(m, sum);  // its barrier: every thread has read `hit`
  if (threadIdx.x == 0) a.losses[n] = m + logf(sum) - hit;
  if (!a.backward) return;
  const float factor = a.scale ? a.factor * *a.scale : a.factor;
  const float share = factor / sum;
#pragma unroll 2
  for (int v = threadIdx.x; v < vectors; v += kThreads) {
    float values[8];
    if constexpr (kKeep) unpack(values, kept[v]);
    else unpack(values, load<kFast>(row + v * 8, count(v)));
    mask_padding(values, v * 8, a.vocabulary);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = exp_of<T>(values[j], m) * share;
    if (v == target / 8) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (v * 8 + j == target) values[j] -= factor;
    }
    if (v * 8 + 8 > a.vocabulary) {  // zero even if the row has a NaN
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (v * 8 + j >= a.vocabulary) values[j] = 0;
    }
    store<kFast>(row + v * 8, values, count(v));
  }
}

}  // namespace

void cross_entropy(Stream& s, Tensor losses, Tensor logits, Tensor targets, int64_t vocabulary, LossFactor factor,
                   Backward backward) {
  const Timed timed(s, Kernel::loss);
  const int64_t N = logits.rows(), V = logits.cols();
  CHECK(losses.numel() == N && targets.numel() == N && vocabulary <= V && V < (1 << 30), logits.shape, ", targets ",
        targets.shape);
  if (N == 0) return;
  visit<float, bf16>(logits.dtype, [&]<class T>() {
    const Rows<T> a{losses.ptr<float>(), logits.ptr<T>(),     targets.ptr<int32_t>(), int(V),
                    int(vocabulary),     float(factor.value), factor.scale,           backward == Backward::yes};
    const size_t bytes = size_t(V) * sizeof(T);
    // of a row that may stay in shared memory, for two blocks an SM; each takes some more
    const size_t room = size_t(shared_room(s.target().compute_capability)) / 2 - 3584;
    if (V % 8 || !aligned({logits.data})) {
      cross_entropy_kernel<T, false, false><<<unsigned(N), kThreads, 0, raw(s)>>>(a);
    } else if (bytes <= room && a.backward) {
      const auto kernel = cross_entropy_kernel<T, true, true>;
      allow_shared(kernel, room);
      kernel<<<unsigned(N), kThreads, bytes, raw(s)>>>(a);
    } else {
      cross_entropy_kernel<T, true, false><<<unsigned(N), kThreads, 0, raw(s)>>>(a);
    }
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace octet::BACKEND
