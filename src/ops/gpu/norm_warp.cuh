#pragma once
// RMSNorm and LayerNorm (kCentre), forward, of rows that fit into a warp's registers: no barriers, all loads of a row
// in flight at once, and with kAhead those of the warp's next row too. Weights are loaded last, from L1, where earlier
// rows left them; x bypasses L1.
#include "ops/gpu/norm.cuh"

namespace octet::BACKEND {

// A row spread over a warp: each lane has the vectors lane, lane + 32, ...; zeros beyond the row.
template <class T, int kVectors>
struct WarpRow {
  int lane, vectors;
  float v[kVectors][8];

  __device__ bool has(int k) const { return k * 32 + lane < vectors; }
  __device__ void request(Pack<T> (&to)[kVectors], const T* row) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) to[k] = has(k) ? load_once(row + (k * 32 + lane) * 8) : Pack<T>{};
  }
  __device__ void arrive(const Pack<T> (&from)[kVectors]) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) unpack(v[k], from[k]);
  }
  __device__ float sum() const {
    float total = 0;
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      total += ((v[k][0] + v[k][1]) + (v[k][2] + v[k][3])) + ((v[k][4] + v[k][5]) + (v[k][6] + v[k][7]));
    return warp_sum(total);
  }
  __device__ void centre(float mean) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
#pragma unroll
      for (int j = 0; j < 8; ++j) v[k][j] = has(k) ? v[k][j] - mean : 0.f;
  }
  __device__ float squares() const {
    float total[2] = {};
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
#pragma unroll
      for (int j = 0; j < 8; ++j) total[j % 2] = fmaf(v[k][j], v[k][j], total[j % 2]);
    return warp_sum(total[0] + total[1]);
  }
};

template <class T, DType kFormat, int kVectors, bool kCentre>
__device__ inline void write_row(const WarpRow<T, kVectors>& row, const NormForward<T>& f, const Sink<T>& out,
                                 int64_t base, float rstd, float scale, uint32_t& amax) {
  Pack<T> w = load<true>(f.w + row.lane * 8, row.has(0)), b{};
  if constexpr (kCentre) b = load<true>(f.b + row.lane * 8, row.has(0));
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!row.has(k)) break;
    const int c = (k * 32 + row.lane) * 8;
    float v[8], weight[8], bias[8];
    unpack(weight, w);
    unpack(bias, b);
    if (k + 1 < kVectors && row.has(k + 1)) {  // before the stores, across which the compiler moves no load
      w = load8(f.w + c + 256);
      if constexpr (kCentre) b = load8(f.b + c + 256);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      v[j] = row.v[k][j] * rstd * weight[j];
      if constexpr (kCentre) v[j] += bias[j];
    }
    emit<kFormat, false>(out, base + c, v, scale, amax);
  }
}

template <class T, DType kFormat, int kVectors, bool kCentre, bool kAhead, int kBlocks>
__global__ void __launch_bounds__(128, kBlocks) norm_forward_warp_kernel(const NormForward<T> f, const Sink<T> out) {
  const int64_t step = gridDim.x * int64_t(4);
  in_order();
  const float scale = out.read_scale(), share = __frcp_rn(float(f.C));
  uint32_t amax = 0;
  WarpRow<T, kVectors> row{.lane = int(threadIdx.x % 32), .vectors = f.C / 8};
  Pack<T> x[kVectors];
  int64_t n = blockIdx.x * int64_t(4) + threadIdx.x / 32;
  if (kAhead && n < out.rows) row.request(x, f.x + n * f.C);
#pragma unroll 1
  for (; n < out.rows; n += step) {
    if (!kAhead) row.request(x, f.x + n * f.C);
    row.arrive(x);
    if (kAhead && n + step < out.rows) row.request(x, f.x + (n + step) * f.C);
    float mean = 0;
    if constexpr (kCentre) {
      mean = row.sum() * share;
      row.centre(mean);
    }
    const float rstd = __frsqrt_rn(fmaf(row.squares(), share, f.eps));
    if (row.lane == 0) {
      f.rstd[n] = rstd;
      if constexpr (kCentre) f.mean[n] = mean;
    }
    write_row<T, kFormat, kVectors, kCentre>(row, f, out, n * f.C, rstd, scale, amax);
  }
  block_amax(out.amax, amax, out.read_amax());
  out.write_scale_inv();
}

}  // namespace octet::BACKEND
