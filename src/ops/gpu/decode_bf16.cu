// Generation's attention in bf16 (decode_kernels.cuh) by mma.sync, 16 keys at a time: the query heads of a block are
// the rows of one fragment. The order of D's elements within fragments of q k^T does not matter as long as q and k
// agree, nor does the order of the columns of p v. So each thread loads 16 bytes of a row: of k for two products, of v
// one column for each of eight.
//   scores (heads, keys) = q (heads, D) k (keys, D)^T      thread: q[g][32j + 8t ..], k[g][32j + 8t ..] of 8 keys
//   o (heads, D) += p (heads, keys) v (keys, D)            thread: v[2t, 2t+1, 2t+8, 2t+9][64c + 8g ..]
// g = lane / 4   t = lane % 4   j: pieces of 32 elements   c: pieces of 64
#include "ops/gpu/decode_kernels.cuh"

namespace octet::BACKEND::decode {
namespace {

constexpr int kHeads = int(kDecodeHeads), kTile = 16;

// Rows 8 to 15 of a are zero.
__device__ inline void multiply(float (&c)[4], uint32_t a, uint32_t a_high, uint32_t b, uint32_t b_high) {
  mma_bf16(c, a, 0, a_high, 0, b, b_high);
}
__device__ inline uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

template <int kChunks>
struct Tile {  // 16 keys and values; zero beyond the end
  uint4 k[2][2 * kChunks], v[4][kChunks];
  __device__ void load(const bf16* keys, const bf16* values, int first, int end, int D) {
    const int lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2 * kChunks; ++j) {
        const int key = first + 8 * i + g, d = 32 * j + 8 * t;
        k[i][j] = {};
        if (key < end && d < D) k[i][j] = load8(keys + int64_t(key) * D + d).a;
      }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int key = first + 2 * t + i % 2 + 8 * (i / 2), d = 64 * c + 8 * g;
        v[i][c] = {};
        if (key < end && d < D) v[i][c] = load8(values + int64_t(key) * D + d).a;
      }
  }
};

template <int kChunks>
struct Attention {  // a warp's online softmax; a thread has head g, elements 64c + 16t + j and 64c + 16t + 8 + j of o
  uint4 q[2 * kChunks];
  float top = -INFINITY, weight = 0, o[8 * kChunks][4] = {};

  __device__ void add(const Tile<kChunks>& tile, int count, float scale) {  // the tile's first `count` keys
    const int t = int(threadIdx.x) % 4;
    float s[2][4] = {}, now = top;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * kChunks; ++j) {
        multiply(s[i], q[j].x, q[j].y, tile.k[i][j].x, tile.k[i][j].y);
        multiply(s[i], q[j].z, q[j].w, tile.k[i][j].z, tile.k[i][j].w);
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        s[i][k] = 8 * i + 2 * t + k < count ? s[i][k] * scale : -INFINITY;
        now = fmaxf(now, s[i][k]);
      }
    }
    now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
    now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
    const float factor = shrink(top, now);
    top = now;
    uint32_t p[2];
    weight *= factor;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float low = shrink(s[i][0], now), high = shrink(s[i][1], now);
      weight += low + high;
      p[i] = Narrow<bf16>::pair(low, high);
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float(&sum)[4] = o[8 * c + j];
        sum[0] *= factor, sum[1] *= factor;
        const int half = j % 2 ? 0x7632 : 0x5410;
        multiply(sum, p[0], p[1], __byte_perm(word(tile.v[0][c], j / 2), word(tile.v[1][c], j / 2), half),
                 __byte_perm(word(tile.v[2][c], j / 2), word(tile.v[3][c], j / 2), half));
      }
  }
};

template <int kChunks>
__global__ void __launch_bounds__(kThreads) bf16_kernel(const __grid_constant__ Params<bf16> p) {
  constexpr int kPitch = 64 * kChunks + 1;
  __shared__ float tops[kWarps][kHeads], weights[kWarps][kHeads], sums[kWarps][kHeads][kPitch];
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int part = int(blockIdx.x), chunk = int(blockIdx.y) % p.chunks, kv = int(blockIdx.y) / p.chunks,
            b = int(blockIdx.z);
  grid_dependency_trigger();
  if (!p.cache_ready) grid_dependency_wait();
  const Part keys(p, part, b);
  if (part >= keys.parts) return;
  const int64_t cache = (int64_t(b) * p.G + kv) * p.S * p.D;
  int first = keys.begin + warp * kTile;
  Tile<kChunks> tile;
  tile.load(p.k + cache, p.v + cache, first, keys.end, p.D);
  if (p.cache_ready) grid_dependency_wait();

  const int head = kv * p.group + chunk * kHeads, heads = min(kHeads, p.group - chunk * kHeads);
  const bf16 *in = p.qkv + b * p.width, *new_k = in + kv * p.kv_step + p.k0, *new_v = in + kv * p.kv_step + p.v0;
  const bool adds = p.table && part == 0 && warp == kWarps - 1;  // the new key, which the cache does not have yet
  const bool stores = adds && chunk == 0 && keys.position < p.S;
  const int64_t to = cache + int64_t(keys.position) * p.D;
  Attention<kChunks> attention;
  Tile<kChunks> added{};
#pragma unroll
  for (int j = 0; j < 2 * kChunks; ++j) {
    const int d = 32 * j + 8 * t;
    attention.q[j] = {};
    if (d >= p.D) continue;
    const Rotation rotation(p.table, keys.position, p.table ? p.half : 0, d);
    if (g < heads) attention.q[j] = rotation.load(in + (head + g) * p.q_step).a;
    if (!adds || g) continue;
    const Pack<bf16> k = rotation.load(new_k);
    added.k[0][j] = k.a;
    if (stores) store8(p.k + to + d, k);
  }
  if (adds && t == 0)
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
      if (const int d = 64 * c + 8 * g; d < p.D) {
        const Pack<bf16> v = load8(new_v + d);
        added.v[0][c] = v.a;
        if (stores) store8(p.v + to + d, v);
      }

  for (; first < keys.end; first += kWarps * kTile) {  // the same for a whole warp
    Tile<kChunks> next;
    next.load(p.k + cache, p.v + cache, first + kWarps * kTile, keys.end, p.D);
    attention.add(tile, keys.end - first, p.scale);
    tile = next;
  }
  if (adds) attention.add(added, 1, p.scale);

  float weight = attention.weight;
  weight += __shfl_xor_sync(~0u, weight, 1);
  weight += __shfl_xor_sync(~0u, weight, 2);
  if (t == 0) tops[warp][g] = attention.top, weights[warp][g] = weight;
#pragma unroll
  for (int c = 0; c < kChunks; ++c)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) sums[warp][g][64 * c + 16 * t + 8 * i + j] = attention.o[8 * c + j][i];
  finish(p, keys.parts, head, heads, tops, weights, sums);
}

}  // namespace

void launch_bf16(Stream& s, const Params<bf16>& params, int64_t B) {
  Params<bf16> p = params;
  p.chunks = (p.group + kHeads - 1) / kHeads;
  const dim3 blocks(unsigned(p.parts), unsigned(p.G * p.chunks), unsigned(B));
  launch_pdl(s, p.D <= 64 ? bf16_kernel<1> : bf16_kernel<2>, {blocks, kThreads}, p);
}

}  // namespace octet::BACKEND::decode
