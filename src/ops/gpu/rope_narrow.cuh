#pragma once
// Rotary embedding of bf16 heads whose R/2 rotated pairs are no multiple of 8: 12 of GPT-NeoX-20B (R 24 of D 96), 10 of
// Pythia-2.8B (20 of 80). The halves of such a pair lie in different places of their vectors, so that a thread holds
// all of the first 24 columns of a head.
#include "ops/gpu/rope.cuh"

namespace octet::BACKEND {

inline bool is_narrow(const Layout& l) { return (l.half == 10 || l.half == 12) && l.D % 8 == 0 && l.D >= 24; }
template <class F>
void with_narrow_half(int half, F&& f) {
  if (half == 10) f.template operator()<10>();
  else f.template operator()<12>();
}

template <int kHalf, Rotation kRotation>
__device__ inline void rotate_narrow(float (&v)[3][8], const Angles& angles, int64_t n) {
  const auto* table = reinterpret_cast<const float4*>(angles.at(angles.position(unsigned(n)), 0));
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float4 two = __ldg(table + i / 2);  // (cos, sin) of pairs i and i+1
    const float cos = i % 2 ? two.z : two.x, sin = kRotation == Rotation::forward ? i % 2 ? two.w : two.y
                                                   : i % 2                        ? -two.w
                                                                                  : -two.y;
    const int j = i + kHalf;
    const float x = v[i / 8][i % 8], y = v[j / 8][j % 8];
    v[i / 8][i % 8] = x * cos - y * sin;
    v[j / 8][j % 8] = y * cos + x * sin;
  }
}

// In place: a thread has one head of one row.
template <int kHalf, Rotation kRotation>
__global__ void __launch_bounds__(256)
    narrow_kernel(bf16* x, const Layout l, const Angles angles, unsigned threads, int64_t width) {
  const unsigned index = blockIdx.x * 256u + threadIdx.x;
  in_order();
  if (index >= threads) return;
  const int64_t n = index / unsigned(l.rotated_heads);
  bf16* head = x + n * width + l.rotated_col(int(index % unsigned(l.rotated_heads)));
  Pack<bf16> packed[3];
  float v[3][8];
#pragma unroll
  for (int k = 0; k < 3; ++k) packed[k] = load8(head + 8 * k);
#pragma unroll
  for (int k = 0; k < 3; ++k) unpack(v[k], packed[k]);
  rotate_narrow<kHalf, kRotation>(v, angles, n);
#pragma unroll
  for (int k = 0; k < 3; ++k) store8(head + 8 * k, pack<bf16>(v[k]));
}

// A producer, as RopeBackward (rope_backward.cu), whose unit is three adjacent vectors of a head.
template <int kHalf>
struct RopeBackwardNarrow {
  static constexpr int kWays = 3;
  struct Raw {
    Pack<bf16> v[3];
  };
  struct Columns {  // as Place
    int col[3]{}, count[3]{};
    bool rotated = false, kept = false;
  };
  const bf16* x;
  int64_t width;
  Layout l;
  Angles angles;
  int per_head, units;
  bool in_place;
  __device__ Columns place(int unit) const {
    const int s = unit / per_head, first = unit % per_head * 24;
    Columns p;
#pragma unroll
    for (int k = 0; k < 3; ++k) p.col[k] = s * l.D + first + 8 * k, p.count[k] = first + 8 * k < l.D ? 8 : 0;
    p.rotated = first == 0 && !l.is_value(s);
    p.kept = in_place && !p.rotated;
    return p;
  }
  template <bool kFast>
  __device__ void load(Raw& raw, int64_t n, const Columns& p) const {
#pragma unroll
    for (int k = 0; k < 3; ++k) raw.v[k] = BACKEND::load<kFast>(x + n * width + p.col[k], p.count[k]);
  }
  __device__ void compute(float (&y)[3][8], const Raw& raw, int64_t n, const Columns& p) const {
#pragma unroll
    for (int k = 0; k < 3; ++k) unpack(y[k], raw.v[k]);
    if (p.rotated) rotate_narrow<kHalf, Rotation::inverse>(y, angles, n);
  }
};

}  // namespace octet::BACKEND
