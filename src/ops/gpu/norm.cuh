#pragma once
// RMSNorm and LayerNorm (kCentre), forward.  xhat = (x - mean) * rstd,  y = xhat * w + b;  RMSNorm has mean = 0, no b.
// One thread block a row, which stays in registers between its statistics and its use. A row-wise kernel cannot write
// the transposed form in full lines, so a second kernel makes it: from q, or without q from x again (norm_launch.cuh).
#include "ops/gpu/producer.cuh"

namespace octet::BACKEND {

template <class T>
struct NormForward {
  const T *x, *w, *b;  // (N,C), (C), (C)
  float *mean, *rstd;  // (N)
  int C;
  float eps;
};

template <bool kCentre>
__device__ inline float normal_form(float x, float mean, float rstd) {
  if constexpr (kCentre) return (x - mean) * rstd;
  else return x * rstd;
}

// kLate: weights are loaded after the statistics, from L1, as registers limit how many rows are in flight. That is a
// gain except where the kernel only waits for memory (RMSNorm without FP8 codes).
template <class T, DType kFormat, int kVectors, bool kCentre, bool kLate>
__global__ void __launch_bounds__(512, kLate && sizeof(T) == 2 ? 2 : 1)
    norm_forward_kernel(const NormForward<T> f, const Sink<T> out) {
  __shared__ float room[2][32];
  const int64_t n = blockIdx.x, base = n * f.C;
  const int vectors = f.C / 8;
  in_order();
  Pack<T> x[kVectors], w[kLate ? 1 : kVectors], b[kLate ? 1 : kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int v = k * blockDim.x + threadIdx.x;
    x[k] = Pack<T>{};
    if (v < vectors) x[k] = kLate ? load_once(f.x + base + v * 8) : load8(f.x + base + v * 8);
  }
  if constexpr (!kLate) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int v = k * blockDim.x + threadIdx.x;
      w[k] = load<true>(f.w + v * 8, v < vectors);
      if constexpr (kCentre) b[k] = load<true>(f.b + v * 8, v < vectors);
    }
  }
  const uint32_t seen = out.read_amax();
  const float scale = out.read_scale(), share = __frcp_rn(float(f.C));
  float mean = 0, v[8];
  if constexpr (kCentre) {
    float sum[1] = {};
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      unpack(v, x[k]);
      sum[0] += ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
    block_sum(sum, room[0]);
    mean = sum[0] * share;
  }
  float squares[1] = {};
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (k * int(blockDim.x) + int(threadIdx.x) >= vectors) break;
    unpack(v, x[k]);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares[0] += (v[j] - mean) * (v[j] - mean);
  }
  block_sum(squares, room[1]);
  const float rstd = __frsqrt_rn(fmaf(squares[0], share, f.eps));
  if (threadIdx.x == 0) {
    f.rstd[n] = rstd;
    if constexpr (kCentre) f.mean[n] = mean;
  }
  uint32_t amax = 0;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int i = k * blockDim.x + threadIdx.x;
    if (i >= vectors) break;
    float weight[8], bias[8];
    unpack(weight, kLate ? load8(f.w + i * 8) : w[kLate ? 0 : k]);
    if constexpr (kCentre) unpack(bias, kLate ? load8(f.b + i * 8) : b[kLate ? 0 : k]);
    unpack(v, x[k]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      v[j] = normal_form<kCentre>(v[j], mean, rstd) * weight[j];
      if constexpr (kCentre) v[j] += bias[j];
    }
    emit<kFormat, false>(out, base + i * 8, v, scale, amax);
  }
  block_amax(out.amax, amax, seen);
  out.write_scale_inv();
}

// Any C and alignment: three passes over the row.
template <class T, bool kCentre>
__global__ void __launch_bounds__(256) norm_forward_any_kernel(const NormForward<T> f, const Sink<T> out) {
  __shared__ float room[2][32];
  const int64_t n = blockIdx.x, base = n * f.C;
  in_order();
  float mean = 0, sum[1] = {}, squares[1] = {};
  if constexpr (kCentre) {
    for (int c = threadIdx.x; c < f.C; c += 256) sum[0] += float(f.x[base + c]);
    block_sum(sum, room[0]);
    mean = sum[0] / float(f.C);
  }
  for (int c = threadIdx.x; c < f.C; c += 256) {
    const float v = float(f.x[base + c]) - mean;
    squares[0] += v * v;
  }
  block_sum(squares, room[1]);
  const float rstd = 1.f / sqrtf(squares[0] / float(f.C) + f.eps), scale = out.read_scale();
  if (threadIdx.x == 0) {
    f.rstd[n] = rstd;
    if constexpr (kCentre) f.mean[n] = mean;
  }
  uint32_t amax = 0;
  for (int c = threadIdx.x; c < f.C; c += 256) {
    float v = normal_form<kCentre>(float(f.x[base + c]), mean, rstd) * float(f.w[c]);
    if constexpr (kCentre) v += float(f.b[c]);
    amax = max(amax, magnitude(v));
    if (out.plain) out.plain[base + c] = T(v);
    const float scaled = __fmul_rn(v, scale);
    if (out.q)
      out.q[base + c] =
          uint8_t(out.format == DType::e4m3 ? encode1<DType::e4m3>(scaled) : encode1<DType::e5m2>(scaled));
  }
  block_amax(out.amax, amax, out.read_amax());
  out.write_scale_inv();
}

}  // namespace octet::BACKEND
