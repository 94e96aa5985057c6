#pragma once
// Online softmax over the tiles of a row, in base 2, on wgmma's accumulators: p = 2^(s * scale - base). The base of a
// row is a running maximum that may lag behind: o and the sum are rescaled only when a score of the warp exceeds its
// base by more than kLag (in base 2), which is rare after the first tiles. Until then p may be as large as 2^kLag, at
// the same relative precision.
#include "ops/gpu/attention_common.cuh"

namespace octet::BACKEND {

struct LaggingSoftmax {  // of the two rows of a lane; each lane of a quad has a partial sum
  static constexpr float kLag = 8;
  float base[2], sum[2], shrink[2];

  template <int kCount>
  __device__ void start(const float (&s)[kCount], float scale) {  // in the first tile no row is masked altogether
#pragma unroll
    for (int half = 0; half < 2; ++half) base[half] = of_row(top(s, half)) * scale, sum[half] = 0;
  }
  // Before the exponentials of a tile. Returns, for the whole warp, whether o has to be multiplied by `shrink`.
  template <int kCount>
  __device__ bool step(const float (&s)[kCount], float scale) {
    const float m[2] = {top(s, 0), top(s, 1)};
    const bool grown = fmaxf(fmaf(m[0], scale, -base[0]), fmaf(m[1], scale, -base[1])) > kLag;
    const bool any = __any_sync(~0u, grown);
    if (any) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float higher = fmaxf(base[half], of_row(m[half]) * scale);
        shrink[half] = exp2_approx(base[half] - higher);
        sum[half] *= shrink[half], base[half] = higher;
      }
    }
    return any;
  }
  // s becomes p in quarters kFrom to kTo - 1 of the columns.
  template <int kFrom, int kTo, int kCount>
  __device__ void exponentiate(float (&s)[kCount], float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float part = 0;
#pragma unroll
      for (int j = kFrom * kCount / 16; j < kTo * kCount / 16; ++j)
#pragma unroll
        for (int i = 4 * j + 2 * half; i < 4 * j + 2 * half + 2; ++i) {
          s[i] = exp2_approx(fmaf(s[i], scale, -base[half]));
          part += s[i];
        }
      sum[half] += part;
    }
  }
  __device__ void finish() {  // sums over the quad
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
    }
  }
  __device__ float log_sum(int half) const { return base[half] * kLn2 + logf(sum[half]); }

 private:
  template <int kCount>
  static __device__ float top(const float (&s)[kCount], int half) {
    float m = fmaxf(s[2 * half], s[2 * half + 1]);
#pragma unroll
    for (int j = 1; j < kCount / 4; ++j) m = fmaxf(m, fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
    return m;
  }
  static __device__ float of_row(float m) {  // four lanes share a row
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
    return fmaxf(m, __shfl_xor_sync(~0u, m, 2));
  }
};

// Masks scores whose rows begin at `row` and columns at `column`: keys after a row's own position.
template <int kCount>
__device__ inline void hide_after(float (&s)[kCount], int row, int column) {
  const int lane = int(threadIdx.x) % 32, own = row + lane / 4 - (column + lane % 4 * 2);
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (i / 4 * 8 + i % 2 - i % 4 / 2 * 8 > own) s[i] = -INFINITY;
}
// Keys before the first one that a row attends to.
template <int kCount>
__device__ inline void hide_before(float (&s)[kCount], const Mask& mask, int b, int row, int column) {
  const int lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first = mask.keys_of(b, row + half * 8 + lane / 4).begin - (column + lane % 4 * 2);
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (j * 8 + i < first) s[4 * j + 2 * half + i] = -INFINITY;
  }
}

}  // namespace octet::BACKEND
