#pragma once
// Generation's attention: one query a sequence over its KV cache. A thread block takes up to kDecodeHeads query heads
// of a group over one part of the keys (split-KV), so that each key and value is read once. Each warp has keys of its
// own and a softmax of its own; the block combines its warps, and the last block to finish combines the parts, all in a
// fixed order. Exponentials are in base 2: the scale includes log2(e). A step (Params::table) also rotates q and the
// new key as it reads them, and appends the new key and value to the cache; part 0 attends to them.
#include <cmath>

#include "ops/gpu/launch.cuh"
#include "ops/gpu/reduce.cuh"
#include "ops/workspace.h"

namespace octet::BACKEND::decode {

inline constexpr int kWarps = 4, kThreads = kWarps * 32;

template <class T>
struct Params {
  const T* qkv;
  T *k, *v, *o;
  const int32_t* position;
  const float* table;                         // the rotary table (positions, half, 2) in a step, else null
  uint32_t* done;                             // (B, G*chunks): how many parts are done
  float *sums, *stats;                        // of the parts: (B,H,parts,D) and (B,H,parts,2)
  int64_t width, S, k0, v0, kv_step, q_step;  // steps: columns between consecutive heads
  int H, G, D, group, chunks, parts, window, half;
  float scale;
  bool cache_ready;
};

// The factor for what was summed under the maximum `before`, when the maximum is now `now`; 0 if nothing was summed.
__device__ inline float shrink(float before, float now) { return before == -INFINITY ? 0.f : exp2f(before - now); }

// A part's keys in the cache, begin to end; parts: the number of parts that have any. Blocks of other parts have
// nothing to do; part 0 always takes part.
struct Part {
  int position, parts, begin, end;
  template <class T>
  __device__ Part(const Params<T>& p, int part, int b) {
    position = p.position[b];
    const int keys = position + (p.table ? 0 : 1), seen = p.window ? max(0, position + 1 - p.window) : 0;
    constexpr int kKeys = int(kDecodeKeys);
    const int each = max(1, (keys - seen + p.parts * kKeys - 1) / (p.parts * kKeys)) * kKeys;
    parts = max(1, (keys - seen + each - 1) / each);
    begin = seen + part * each, end = min(begin + each, keys);
  }
};

// Rotary embedding of a vector of 8 elements at a time: ops.h.
struct Rotation {
  int at, other;  // where this vector and the one it is rotated with begin; other < 0: it is not rotated
  float cos[8], sin[8];
  __device__ Rotation(const float* table, int position, int half, int d) : at(d), other(-1) {
    if (d >= 2 * half) return;
    const bool low = d < half;
    other = low ? d + half : d - half;
    const float4* pairs = reinterpret_cast<const float4*>(table + (int64_t(position) * half + (low ? d : other)) * 2);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 two = __ldg(pairs + j);
      cos[2 * j] = two.x, sin[2 * j] = low ? -two.y : two.y;
      cos[2 * j + 1] = two.z, sin[2 * j + 1] = low ? -two.w : two.w;
    }
  }
  template <class T>
  __device__ Pack<T> load(const T* head) const {
    const Pack<T> x = load8(head + at);
    if (other < 0) return x;
    float a[8], b[8];
    unpack(a, x);
    unpack(b, load8(head + other));
#pragma unroll
    for (int j = 0; j < 8; ++j) a[j] = a[j] * cos[j] + b[j] * sin[j];
    return pack<T>(a);
  }
};

// The end of a block: combines its warps (tops, weights and sums are in shared memory); the last block of its heads to
// get here combines all parts.
template <class T, int kQ, int kPitch>
__device__ void finish(const Params<T>& p, int parts, int head, int heads, const float (&tops)[kWarps][kQ],
                       const float (&weights)[kWarps][kQ], const float (&sums)[kWarps][kQ][kPitch]) {
  __shared__ float factor[kQ][kDecodeParts];
  __shared__ bool last;
  const int part = int(blockIdx.x), b = int(blockIdx.z), warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int64_t row0 = int64_t(b) * p.H + head;
  __syncthreads();
  for (int i = int(threadIdx.x); i < heads * p.D; i += kThreads) {
    const int h = i / p.D, d = i % p.D;
    float top = -INFINITY, weight = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, tops[w][h]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float f = shrink(tops[w][h], top);
      weight += weights[w][h] * f, sum += sums[w][h][d] * f;
    }
    const int64_t row = row0 + h, at = row * p.parts + part;
    if (parts == 1) {
      p.o[row * p.D + d] = T(sum / weight);
      continue;
    }
    p.sums[at * p.D + d] = sum;
    if (d == 0) p.stats[at * 2] = top, p.stats[at * 2 + 1] = weight;
  }
  if (parts == 1) return;
  __threadfence();  // makes this block's results visible before it is counted
  __syncthreads();
  if (threadIdx.x == 0)  // wraps to 0 for the next call
    last = atomicInc(p.done + int64_t(b) * gridDim.y + blockIdx.y, unsigned(parts - 1)) == unsigned(parts - 1);
  __syncthreads();
  if (!last) return;
  __threadfence();
  static_assert(kDecodeParts == 64, "two parts a lane");
  for (int h = warp; h < heads; h += kWarps) {
    const float2* stats = reinterpret_cast<const float2*>(p.stats) + (row0 + h) * p.parts;
    const float2 none{-INFINITY, 0}, one = lane < parts ? __ldcg(stats + lane) : none,
                                     two = lane + 32 < parts ? __ldcg(stats + lane + 32) : none;
    float top = fmaxf(one.x, two.x);
#pragma unroll
    for (int o = 16; o; o /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
    const float f1 = shrink(one.x, top), f2 = shrink(two.x, top);
    const float total = warp_sum(one.y * f1 + two.y * f2);
    factor[h][lane] = f1 / total, factor[h][lane + 32] = f2 / total;
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < heads * (p.D / 4); i += kThreads) {
    const int h = i / (p.D / 4), d = i % (p.D / 4) * 4;
    const float* from = p.sums + (row0 + h) * p.parts * p.D + d;
    float4 sum{};
#pragma unroll 8
    for (int k = 0; k < parts; ++k) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(from + int64_t(k) * p.D));
      const float f = factor[h][k];
      sum.x = fmaf(x.x, f, sum.x), sum.y = fmaf(x.y, f, sum.y), sum.z = fmaf(x.z, f, sum.z),
      sum.w = fmaf(x.w, f, sum.w);
    }
    T* to = p.o + (row0 + h) * p.D + d;
    to[0] = T(sum.x), to[1] = T(sum.y), to[2] = T(sum.z), to[3] = T(sum.w);
  }
}

void launch_bf16(Stream&, const Params<bf16>&, int64_t B);   // by the tensor cores: D <= 128
void launch_plain(Stream&, const Params<bf16>&, int64_t B);  // by the CUDA cores: D > 128, and fp32
void launch_plain(Stream&, const Params<float>&, int64_t B);

}  // namespace octet::BACKEND::decode
