#pragma once
// The epilogue of the grouped product: how a tile gets from the accumulators to memory.
#include <cuda_bf16.h>

#include "ops/gpu/grouped_tiles.cuh"

namespace octet::BACKEND::grouped {

__device__ inline float2 unpack_bf16(uint32_t v) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&v));
}

// A quad of lanes holds, of each of four groups of 8 columns, one pair of columns a lane. This transposes: lane q gets
// all four pairs of group q.
template <int kBit>
__device__ inline void swap_pairs(uint32_t& low, uint32_t& high, int q) {
  const bool upper = q & kBit;
  const uint32_t got = __shfl_xor_sync(~0u, upper ? low : high, kBit);
  high = upper ? high : got;
  low = upper ? got : low;
}
__device__ inline void transpose_quad(uint32_t (&v)[4], int q) {
  swap_pairs<1>(v[0], v[1], q), swap_pairs<1>(v[2], v[3], q);
  swap_pairs<2>(v[0], v[2], q), swap_pairs<2>(v[1], v[3], q);
}

// Stores a row's 256 columns by the quad of lanes that holds them, 16 bytes a thread at a time. half 1: the row 8
// further down. in: the row is part of d. add: adds to what is there.
template <int half>
__device__ inline void store_bf16(__nv_bfloat16* row, const float (&d)[128], float scale, int columns, bool in,
                                  bool add) {
  const int q = threadIdx.x % 4;
  uint4 old[8] = {};
  if (add) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = (j * 4 + q) * 8;
      if (in && column < columns) old[j] = *reinterpret_cast<const uint4*>(row + column);
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    uint32_t v[4] = {old[j].x, old[j].y, old[j].z, old[j].w};
    if (add) transpose_quad(v, q);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = (j * 4 + i) * 4 + half * 2;
      const float2 before = add ? unpack_bf16(v[i]) : make_float2(0, 0);
      v[i] = pack_bf16(d[at] * scale + before.x, d[at + 1] * scale + before.y);
    }
    transpose_quad(v, q);
    const int column = (j * 4 + q) * 8;
    if (in && column < columns) *reinterpret_cast<uint4*>(row + column) = make_uint4(v[0], v[1], v[2], v[3]);
  }
}

// Four adjacent columns a lane, of the groups of 8 columns j (even lanes) and j + 1 (odd lanes).
template <int half>
__device__ inline float4 four_columns(const float (&d)[128], int j, float scale) {
  const bool odd = threadIdx.x & 1;
  const int at = j * 4 + half * 2;
  const float ax = d[at] * scale, ay = d[at + 1] * scale, bx = d[at + 4] * scale, by = d[at + 5] * scale;
  const float gx = __shfl_xor_sync(~0u, odd ? ax : bx, 1), gy = __shfl_xor_sync(~0u, odd ? ay : by, 1);
  return odd ? make_float4(gx, gy, bx, by) : make_float4(ax, ay, gx, gy);
}
__device__ inline int column_of_four(int j) { return (j + int(threadIdx.x & 1)) * 8 + (threadIdx.x & 2) * 2; }

template <int half>
__device__ inline void store_f32(float* row, const float (&d)[128], float scale, int columns, bool in) {
#pragma unroll
  for (int j = 0; j < 32; j += 2) {
    const float4 v = four_columns<half>(d, j, scale);
    const int column = column_of_four(j);
    if (in && column < columns) *reinterpret_cast<float4*>(row + column) = v;
  }
}

// Stores the warpgroup's 64 rows by TMA, or adds them in L2 by TMA reductions, 32 columns at a time, through two blocks
// of shared memory. Both overlap the next tile's products, which loads and stores would delay.
__device__ inline void sum_f32(const Params& p, const Tile& t, const float (&d)[128], float scale, uint32_t staging) {
  const int warpgroup = threadIdx.x / 128 - 1, row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const bool starts = threadIdx.x % 128 == 0;
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const uint32_t block = staging + (warpgroup * 2 + c % 2) * kBlockBytes;
    if (starts) tma_store_wait_read<1>();
    warpgroup_sync(warpgroup);
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const int piece = (column_of_four(j) / 4 ^ row % 8) * 16;  // the swizzle; rows r and r + 8 have the same
      store_shared(block + row * 128 + piece, four_columns<0>(d, c * 4 + j, scale));
      store_shared(block + (row + 8) * 128 + piece, four_columns<1>(d, c * 4 + j, scale));
    }
    fence_async_proxy();
    warpgroup_sync(warpgroup);
    if (!starts) continue;
    if (t.n + c * 32 < p.N) {
      if (adds(p.store)) tma_reduce_add(p.expert[t.group], t.n + c * 32, t.m + warpgroup * 64, block);
      else tma_store(p.expert[t.group], t.n + c * 32, t.m + warpgroup * 64, block);
    }
    tma_store_commit();  // even if empty: waiting counts groups
  }
}

template <class F, int half>
__device__ inline void store_half(const Params& p, const Tile& t, const float (&d)[128], float scale) {
  const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32, columns = p.N - t.n;
  const int m = t.m + warp * 16 + half * 8 + lane / 4;
  const bool in = m < (F::kSums ? p.M : t.rows);
  const int64_t at = int64_t(F::kSums ? m : t.row + m) * p.N + t.n;
  void* const to = p.d[F::kSums ? t.group : 0];
  if (!F::kSums && p.store == Store::f32) store_f32<half>(static_cast<float*>(to) + at, d, scale, columns, in);
  else store_bf16<half>(static_cast<__nv_bfloat16*>(to) + at, d, scale, columns, in, F::kSums && adds(p.store));
}
template <class F>
__device__ inline void store(const Params& p, const Tile& t, const float (&d)[128], float scale, uint32_t staging) {
  if (F::kSums && (p.store == Store::f32 || p.store == Store::add_f32)) return sum_f32(p, t, d, scale, staging);
  store_half<F, 0>(p, t, d, scale);
  store_half<F, 1>(p, t, d, scale);
}

}  // namespace octet::BACKEND::grouped
