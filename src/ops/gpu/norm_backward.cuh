#pragma once
// RMSNorm and LayerNorm (kCentre), backward.
//   dx += rstd * (g - [mean_c g] - x^ * mean_c(g x^)),  g = w*dy;   dw += sum_n dy*x^;   [db += sum_n dy]
// As many blocks as `partial` has rows, each over every gridDim-th row; a block's share of dw stays in its registers
// until the end. x, dy and dx of the next rows are on their way into shared memory (cp.async) while a row is worked on;
// a thread reads only what it fetched itself, so that the one barrier a row is that of the sums.
#include <cuda_pipeline_primitives.h>

#include "ops/gpu/norm.cuh"
#include "ops/workspace.h"

namespace octet::BACKEND {

template <class T>
struct NormBackward {
  T* dx;                           // (N,C)
  const T *dy, *x, *w;             // (N,C), (N,C), (C)
  const float *mean, *rstd;        // (N)
  float *dw_partial, *db_partial;  // (gridDim, C)
  int64_t N;
  int C;
};

template <class T>
__device__ inline void fetch(Pack<T>* to, const T* from) {
#pragma unroll
  for (size_t i = 0; i < sizeof(Pack<T>); i += 16)
    __pipeline_memcpy_async(reinterpret_cast<char*>(to) + i, reinterpret_cast<const char*>(from) + i, 16);
}

template <class T, int kVectors, int kStages, bool kCentre>
__global__ void __launch_bounds__(512, kVectors == 1 || (sizeof(T) == 2 && !kCentre) ? 2 : 1)
    norm_backward_kernel(const NormBackward<T> f) {
  extern __shared__ uint4 dynamic[];
  __shared__ float room[2][64];
  auto* ring = reinterpret_cast<Pack<T>*>(dynamic);  // (kStages, 3, kVectors, threads)
  const int vectors = f.C / 8, threads = blockDim.x, step = gridDim.x;
  const auto slot = [&](int stage, int which, int k) -> Pack<T>* {
    return ring + ((stage * 3 + which) * kVectors + k) * threads + threadIdx.x;
  };
  const auto request = [&](int64_t n, int stage) {
    if (n < f.N) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        const int v = k * threads + threadIdx.x;
        if (v >= vectors) break;
        const int64_t at = n * f.C + v * 8;
        fetch(slot(stage, 0, k), f.x + at);
        fetch(slot(stage, 1, k), f.dy + at);
        fetch(slot(stage, 2, k), f.dx + at);
      }
    }
    __pipeline_commit();  // also when empty: the count of groups is the count of rows
  };
  Pack<T> weight[kVectors];
  float dw[kVectors][8] = {}, db[kCentre ? kVectors : 1][8] = {};
#pragma unroll
  for (int k = 0; k < kVectors; ++k)
    weight[k] = load<true>(f.w + (k * threads + threadIdx.x) * 8, k * threads + int(threadIdx.x) < vectors);
  for (int s = 0; s < kStages - 1; ++s) request(blockIdx.x + int64_t(s) * step, s);
  float rstd = blockIdx.x < f.N ? f.rstd[blockIdx.x] : 0.f, mean = 0;
  if constexpr (kCentre) mean = blockIdx.x < f.N ? f.mean[blockIdx.x] : 0.f;
  int stage = 0, parity = 0;
  for (int64_t n = blockIdx.x; n < f.N; n += step) {
    request(n + int64_t(kStages - 1) * step, stage == 0 ? kStages - 1 : stage - 1);  // the slot of the row before
    const bool more = n + step < f.N;
    const float next_rstd = more ? f.rstd[n + step] : 0.f;
    float next_mean = 0;
    if constexpr (kCentre) next_mean = more ? f.mean[n + step] : 0.f;
    __pipeline_wait_prior(kStages - 1);
    float sums[kCentre ? 2 : 1] = {};
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (k * threads + int(threadIdx.x) >= vectors) break;
      float x[8], dy[8], w[8];
      unpack(x, *slot(stage, 0, k));
      unpack(dy, *slot(stage, 1, k));
      unpack(w, weight[k]);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float xhat = normal_form<kCentre>(x[j], mean, rstd), g = w[j] * dy[j];
        sums[0] += g * xhat;
        if constexpr (kCentre) sums[1] += g, db[k][j] += dy[j];
        dw[k][j] += dy[j] * xhat;
      }
    }
    block_sum(sums, room[parity]);
    const float mean_gx = sums[0] / float(f.C), mean_g = kCentre ? sums[kCentre ? 1 : 0] / float(f.C) : 0.f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int v = k * threads + threadIdx.x;
      if (v >= vectors) break;
      float x[8], dy[8], w[8], dx[8];
      unpack(x, *slot(stage, 0, k));
      unpack(dy, *slot(stage, 1, k));
      unpack(dx, *slot(stage, 2, k));
      unpack(w, weight[k]);
#pragma unroll
      for (int j = 0; j < 8; ++j)
        dx[j] += rstd * (w[j] * dy[j] - mean_g - normal_form<kCentre>(x[j], mean, rstd) * mean_gx);
      store8(f.dx + n * f.C + v * 8, pack<T>(dx));
    }
    rstd = next_rstd, mean = next_mean;
    stage = stage == kStages - 1 ? 0 : stage + 1;
    parity ^= 1;
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int v = k * threads + threadIdx.x;
    if (v >= vectors) break;
    const int64_t at = int64_t(blockIdx.x) * f.C + v * 8;
    store8(f.dw_partial + at, pack<float>(dw[k]));
    if constexpr (kCentre) store8(f.db_partial + at, pack<float>(db[k]));
  }
}

// Any C and alignment: a thread's columns of partial are its sums.
template <class T, bool kCentre>
__global__ void __launch_bounds__(256) norm_backward_any_kernel(const NormBackward<T> f) {
  __shared__ float room[2][64];
  float* dw = f.dw_partial + int64_t(blockIdx.x) * f.C;
  float* db = kCentre ? f.db_partial + int64_t(blockIdx.x) * f.C : nullptr;
  for (int c = threadIdx.x; c < f.C; c += 256) {
    dw[c] = 0;
    if constexpr (kCentre) db[c] = 0;
  }
  int parity = 0;
  for (int64_t n = blockIdx.x; n < f.N; n += gridDim.x) {
    const int64_t base = n * f.C;
    const float rstd = f.rstd[n], mean = kCentre ? f.mean[n] : 0.f;
    float sums[2] = {};
    for (int c = threadIdx.x; c < f.C; c += 256) {
      const float xhat = normal_form<kCentre>(float(f.x[base + c]), mean, rstd), dy = float(f.dy[base + c]);
      sums[0] += float(f.w[c]) * dy * xhat;
      sums[1] += float(f.w[c]) * dy;
      dw[c] += dy * xhat;
      if constexpr (kCentre) db[c] += dy;
    }
    block_sum(sums, room[parity]);
    const float mean_gx = sums[0] / float(f.C), mean_g = kCentre ? sums[1] / float(f.C) : 0.f;
    for (int c = threadIdx.x; c < f.C; c += 256) {
      const float xhat = normal_form<kCentre>(float(f.x[base + c]), mean, rstd);
      T& dx = f.dx[base + c];
      dx = T(float(dx) + rstd * (float(f.w[c]) * float(f.dy[base + c]) - mean_g - xhat * mean_gx));
    }
    parity ^= 1;
  }
}

template <class T, int kVectors, int kStages, bool kCentre>
void launch_norm_backward(Stream& s, const NormBackward<T>& f, unsigned blocks) {
  const unsigned threads = unsigned(ceil_div(ceil_div(f.C / 8, kVectors), 32) * 32);
  const size_t shared = size_t(kStages) * 3 * kVectors * threads * sizeof(Pack<T>);
  const auto kernel = norm_backward_kernel<T, kVectors, kStages, kCentre>;
  allow_shared(kernel, shared);
  kernel<<<blocks, threads, shared, raw(s)>>>(f);
}

// partial: (P,C), or (2P,C) with kCentre. Writes dx and dw's (and db's) partial rows; returns how many there are.
template <bool kCentre, class T>
int64_t norm_backward(Stream& s, const NormBackward<T>& f) {
  const int64_t blocks = std::min(partial_rows(s.target()), f.N);
  const int cc = s.target().compute_capability;
  const int64_t room = cc >= 90 ? 226 << 10 : cc == 80 ? 162 << 10 : 98 << 10;  // shared memory of an SM
  const int64_t row = ceil_div(f.C / 8, 64) * 64 * 3 * int64_t(sizeof(Pack<T>)), half = room / 2 - 2048;
  const bool vectors = f.C % 8 == 0 && aligned({f.dx, f.dy, f.x, f.w, f.dw_partial, f.db_partial});
  if (blocks == 0) return 0;
  if (!vectors || f.C > 8192 || 2 * row > room - 4096)
    norm_backward_any_kernel<T, kCentre><<<unsigned(blocks), 256, 0, raw(s)>>>(f);
  else if (f.C <= 4096) {
    if (4 * row <= half) launch_norm_backward<T, 1, 4, kCentre>(s, f, unsigned(blocks));
    else launch_norm_backward<T, 1, 2, kCentre>(s, f, unsigned(blocks));
  } else launch_norm_backward<T, 2, 2, kCentre>(s, f, unsigned(blocks));
  CUDA_CHECK(cudaGetLastError());
  return blocks;
}

}  // namespace octet::BACKEND
