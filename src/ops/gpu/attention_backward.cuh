#pragma once
// Attention's backward pass in bf16 is two kernels, each of which owns what it writes: one is parallel over tiles of
// query rows and sums dq over the keys, the other is parallel over tiles of keys and sums dk and dv over the queries.
// Both compute scores and dp (7 products instead of 5); in exchange there are no atomics, no fp32 copy of dq and no
// exchange of p between warps, and the result is the same bit for bit from run to run.
#include "ops/gpu/attention_kernels.h"
#include "ops/gpu/attention_tiles.cuh"

namespace octet::BACKEND {

struct BackwardParams {
  bf16* dqkv;                 // (B*T, width)
  const bf16 *qkv, *d_o, *o;  // (B*T, width), (B*T, H*D) twice
  const float* lse;           // (B, H, T)
  float* delta;               // (B, H, T)
  QkvLayout layout;
  Schedule schedule;
  Mask mask;
  int H, G, T, D;
  float scale;
};

inline BackwardParams backward_params(const AttentionBackward& t, const Attention& a, const Schedule& schedule) {
  BackwardParams p{t.dqkv.ptr<bf16>(), t.qkv.ptr<bf16>(),  t.d_o.ptr<bf16>(),
                   t.o.ptr<bf16>(),    t.lse.ptr<float>(), static_cast<float*>(t.workspace.data),
                   QkvLayout(a.heads), schedule,           mask_of(a)};
  p.H = int(a.heads.H), p.G = int(a.heads.G), p.T = int(a.T), p.D = int(a.heads.D);
  p.scale = float(a.scale);
  return p;
}

// For delta = rowsum(do * o):  sum + u . v of eight bf16 each, in order; and the sum over the four lanes of a quad.
__device__ inline float add_products(float sum, const uint4& u, const uint4& v) {
  const uint32_t us[4] = {u.x, u.y, u.z, u.w}, vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(__uint_as_float(us[i] << 16), __uint_as_float(vs[i] << 16), sum);
    sum = fmaf(__uint_as_float(us[i] & 0xffff0000), __uint_as_float(vs[i] & 0xffff0000), sum);
  }
  return sum;
}
__device__ inline float quad_sum(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}

}  // namespace octet::BACKEND
