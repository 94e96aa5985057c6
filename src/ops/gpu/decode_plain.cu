// Generation's attention (decode_kernels.cuh) on CUDA cores, for fp32 and for large heads: a thread has eight elements
// of D, kLanes threads a row, so that a warp works on 32/kLanes keys at a time.
#include "ops/gpu/decode_kernels.cuh"
#include "ops/gpu/vector.cuh"

namespace octet::BACKEND::decode {
namespace {

// A thread's online softmax for the heads of its block: running maximum, sum of weights, weighted sum of values.
template <int kQ>
struct Softmax {
  float top[kQ], weight[kQ], sum[kQ][8];
  __device__ Softmax() {
#pragma unroll
    for (int h = 0; h < kQ; ++h) {
      top[h] = -INFINITY, weight[h] = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[h][i] = 0;
    }
  }
  template <class T, int kU>
  __device__ void add(const float (&s)[kQ][kU], const Pack<T> (&v)[kU]) {
    float p[kQ][kU];
#pragma unroll
    for (int h = 0; h < kQ; ++h) {
      float now = top[h];
#pragma unroll
      for (int u = 0; u < kU; ++u) now = fmaxf(now, s[h][u]);
      const float factor = shrink(top[h], now);
      weight[h] *= factor;
#pragma unroll
      for (int u = 0; u < kU; ++u) weight[h] += p[h][u] = shrink(s[h][u], now);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[h][i] *= factor;
      top[h] = now;
    }
#pragma unroll
    for (int u = 0; u < kU; ++u) {
      float value[8];
      unpack(value, v[u]);
#pragma unroll
      for (int h = 0; h < kQ; ++h)
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[h][i] = fmaf(p[h][u], value[i], sum[h][i]);
    }
  }
  // Combines the threads of the warp that hold the same elements of other keys.
  template <int kLanes>
  __device__ void join() {
#pragma unroll
    for (int h = 0; h < kQ; ++h) {
#pragma unroll
      for (int lane = kLanes; lane < 32; lane *= 2) {
        const float other = __shfl_xor_sync(~0u, top[h], lane), now = fmaxf(top[h], other);
        const float mine = shrink(top[h], now), theirs = shrink(other, now);
        weight[h] = weight[h] * mine + __shfl_xor_sync(~0u, weight[h], lane) * theirs;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[h][i] = sum[h][i] * mine + __shfl_xor_sync(~0u, sum[h][i], lane) * theirs;
        top[h] = now;
      }
    }
  }
};

template <int kLanes>
__device__ float dot_of(const float (&q)[8], const float (&key)[8]) {
  float dot = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) dot = fmaf(q[i], key[i], dot);
#pragma unroll
  for (int other = kLanes / 2; other; other /= 2) dot += __shfl_xor_sync(~0u, dot, other);
  return dot;
}

// Attends to the new token's key and value, which are not in the cache yet, and appends them.
template <class T, int kLanes, int kQ>
__device__ void add_new(Softmax<kQ>& softmax, const float (&q)[kQ][8], const Params<T>& p, const Rotation& rotation,
                        const T* row, int64_t to, bool live, bool stores) {
  const int lane = int(threadIdx.x) % 32;
  Pack<T> k{}, v[1]{};
  if (live) k = rotation.load(row + p.k0), v[0] = load8(row + p.v0 + rotation.at);
  float key[8], s[kQ][1];
  unpack(key, k);
#pragma unroll
  for (int h = 0; h < kQ; ++h) {
    const float dot = dot_of<kLanes>(q[h], key);
    s[h][0] = lane < kLanes ? dot : -INFINITY;
  }
  softmax.template add<T, 1>(s, v);
  if (!live || !stores || lane >= kLanes) return;
  store8(p.k + to, k);
  store8(p.v + to, v[0]);
}

template <class T, int kLanes, int kQ, int kU>
__global__ void __launch_bounds__(kThreads) decode_kernel(const __grid_constant__ Params<T> p) {
  constexpr int kRows = 32 / kLanes;  // of a warp
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, at = lane % kLanes * 8;
  const int part = int(blockIdx.x), chunk = int(blockIdx.y) % p.chunks, g = int(blockIdx.y) / p.chunks,
            b = int(blockIdx.z);
  grid_dependency_trigger();
  grid_dependency_wait();
  const Part keys(p, part, b);
  if (part >= keys.parts) return;

  const int head = g * p.group + chunk * kQ, heads = min(kQ, p.group - chunk * kQ);
  const bool live = at < p.D;
  const Rotation rotation(p.table, keys.position, p.table ? p.half : 0, live ? at : 0);
  const T* in = p.qkv + b * p.width;
  float q[kQ][8];
#pragma unroll
  for (int h = 0; h < kQ; ++h) {
    Pack<T> raw{};
    if (live && h < heads) raw = rotation.load(in + (head + h) * p.q_step);
    unpack(q[h], raw);
#pragma unroll
    for (int i = 0; i < 8; ++i) q[h][i] *= p.scale;
  }
  const int64_t cache = (int64_t(b) * p.G + g) * p.S * p.D + at;
  Softmax<kQ> softmax;
  for (int row = keys.begin + warp * kRows * kU; row < keys.end;
       row += kWarps * kRows * kU) {  // the same for a whole warp
    Pack<T> k[kU], v[kU];
#pragma unroll
    for (int u = 0; u < kU; ++u) {
      const int key = row + u * kRows + lane / kLanes;
      k[u] = {}, v[u] = {};
      if (live && key < keys.end) {
        k[u] = load8(p.k + cache + int64_t(key) * p.D);
        v[u] = load8(p.v + cache + int64_t(key) * p.D);
      }
    }
    float s[kQ][kU];
#pragma unroll
    for (int u = 0; u < kU; ++u) {
      float key[8];
      unpack(key, k[u]);
#pragma unroll
      for (int h = 0; h < kQ; ++h) {
        const float dot = dot_of<kLanes>(q[h], key);
        s[h][u] = row + u * kRows + lane / kLanes < keys.end ? dot : -INFINITY;
      }
    }
    softmax.template add<T, kU>(s, v);
  }
  if (p.table && part == 0 && warp == 0)
    add_new<T, kLanes, kQ>(softmax, q, p, rotation, in + g * p.kv_step, cache + int64_t(keys.position) * p.D, live,
                           chunk == 0 && keys.position < p.S);
  softmax.template join<kLanes>();

  __shared__ float tops[kWarps][kQ], weights[kWarps][kQ], sums[kWarps][kQ][kLanes * 8];
  if (lane < kLanes) {
#pragma unroll
    for (int h = 0; h < kQ; ++h) {
      if (lane == 0) tops[warp][h] = softmax.top[h], weights[warp][h] = softmax.weight[h];
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[warp][h][at + i] = softmax.sum[h][i];
    }
  }
  finish(p, keys.parts, head, heads, tops, weights, sums);
}

template <class T, int kLanes, int kQ>
void launch(Stream& s, const Params<T>& p, int64_t B) {
  constexpr int kU = kQ == 8 || sizeof(T) == 4 ? 2 : 4;  // keys in flight a thread: as many as registers allow
  const dim3 blocks(unsigned(p.parts), unsigned(p.G * p.chunks), unsigned(B));
  launch_pdl(s, decode_kernel<T, kLanes, kQ, kU>, {blocks, kThreads}, p);
}
template <class T, int kLanes>
void launch_heads(Stream& s, Params<T> p, int64_t B) {
  const int heads = p.group == 1 ? 1 : p.group == 2 ? 2 : p.group <= 4 ? 4 : int(kDecodeHeads);
  p.chunks = (p.group + heads - 1) / heads;
  if (heads == 1) launch<T, kLanes, 1>(s, p, B);
  else if (heads == 2) launch<T, kLanes, 2>(s, p, B);
  else if (heads == 4) launch<T, kLanes, 4>(s, p, B);
  else launch<T, kLanes, 8>(s, p, B);
}

}  // namespace

void launch_plain(Stream& s, const Params<float>& p, int64_t B) {
  if (p.D > 128) launch_heads<float, 32>(s, p, B);
  else p.D <= 64 ? launch_heads<float, 8>(s, p, B) : launch_heads<float, 16>(s, p, B);
}
void launch_plain(Stream& s, const Params<bf16>& p, int64_t B) {
  CHECK(p.D > 128, "launch_bf16 has heads of ", p.D);
  launch_heads<bf16, 32>(s, p, B);
}

}  // namespace octet::BACKEND::decode
