#pragma once
// What the two backward kernels share. Attention's backward in bf16 is two kernels, each of which owns what it writes:
// one stands on query rows and sums dq over the keys, one stands on keys and sums dk and dv over the queries. Scores
// and dp are computed in both (7 products in place of 5); in exchange there are no atomics, no fp32 copy of dq and no
// exchange of p between warps, and the bits repeat from run to run.
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

}  // namespace octet::BACKEND
