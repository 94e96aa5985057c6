#pragma once
// What the two backward kernels of Hopper share. The split is that of attention_backward.cuh; the products are wgmma:
// one warp brings tiles through a ring of stages, two or three warpgroups multiply. p and ds never leave registers,
// where they are the left factors of the second products.
//                         Shah et al. 2024 (FlashAttention-3), arXiv:2407.08608; Dao 2023, arXiv:2307.08691
#include "ops/gpu/attention_backward.cuh"
#include "ops/gpu/hopper.cuh"
#include "ops/gpu/tensor_map.h"
#include "ops/gpu/wgmma.cuh"
#include "ops/workspace.h"

namespace octet::BACKEND::hopper {

struct Backward {
  CUtensorMap qkv, d_o, dqkv;  // (columns, T, B) in blocks of 64 columns and 64 rows
  BackwardParams p;
  float* statistics;  // (B, H, tiles of 64 rows, 2, 64): -lse log2(e) and delta, zeros beyond T
  int row_tiles;
  __device__ float* statistics_of(int b, int h, int row) const {  // the log-sum of a row; its delta 64 further
    return statistics + ((int64_t(b) * p.H + h) * row_tiles + row / 64) * kRowStatistics + row % 64;
  }
};

inline CUtensorMap sequences(const bf16* base, int64_t columns, const Attention& a) {
  return tensor_map<3>(DType::bf16, base, {columns, a.T, a.B}, {columns * 2, a.T * columns * 2}, {64, 64, 1});
}
inline Backward backward_of(const AttentionBackward& t, const Attention& a, const Schedule& schedule) {
  Backward x{.p = backward_params(t, a, schedule)};
  x.statistics = static_cast<float*>(t.workspace.data), x.row_tiles = int(row_tiles(a.T));
  x.qkv = sequences(x.p.qkv, a.heads.width(), a);
  x.dqkv = sequences(x.p.dqkv, a.heads.width(), a);
  x.d_o = sequences(x.p.d_o, a.heads.H * a.heads.D, a);
  return x;
}

// A block owns two tiles of kOwn rows, 64 a warpgroup; pairs of tiles across, of kAcross rows each, come through
// stages. The own rows are left factors: those of the first kKept tiles stay in registers, the others are read from
// shared memory for every product.
template <int kD_, int kAcross_, int kStages_, int kGroups_, int kKept_>
struct BackwardForm {
  static constexpr int kD = kD_, kAcross = kAcross_, kStages = kStages_, kGroups = kGroups_, kKept = kKept_;
  static constexpr int kOwn = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kOwnBytes = kOwn * kD * 2, kAcrossBytes = kAcross * kD * 2, kRowsBytes = 2 * kAcross * 4;
  static constexpr int kComputing = kGroups == 2 ? 240 : 160, kLoading = kGroups == 2 ? 24 : 32;  // registers
  // Shared memory: own tiles, stages, two numbers for each row of a stage, barriers
  static constexpr int kStagesAt = 2 * kOwnBytes, kRowsAt = kStagesAt + kStages * 2 * kAcrossBytes;
  static constexpr int kBarriersAt = kRowsAt + kStages * kRowsBytes;
  static constexpr int kSharedBytes = kBarriersAt + 16 * kStages + 8 + 1024;  // 1024: for alignment
  // A warpgroup that passes tiles on its way to the next one, up to kGroups - 1, has not given back the one before.
  static_assert(kSharedBytes <= 232448 && kStages >= kGroups);
};

template <class F>
struct Shared {
  uint32_t start;
  __device__ explicit Shared(const void* dynamic) : start((shared_address(dynamic) + 1023) & ~1023u) {}
  __device__ void init() const {
    for (int s = 0; s < F::kStages; ++s) barrier_init(full(s), 1), barrier_init(empty(s), 128 * F::kGroups);
    barrier_init(own_full(), 1);
    fence_barrier_init();
  }
  __device__ uint32_t own() const { return start; }  // and kOwnBytes behind it
  __device__ uint32_t across(int stage) const { return start + F::kStagesAt + stage * 2 * F::kAcrossBytes; }
  __device__ uint32_t rows(int stage) const { return start + F::kRowsAt + stage * F::kRowsBytes; }
  __device__ uint32_t full(int stage) const { return start + F::kBarriersAt + stage * 16; }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
  __device__ uint32_t own_full() const { return full(F::kStages); }
  __device__ void release(int stage) const { barrier_arrive(empty(stage)); }  // each lane that reads says so
};

template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void step() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// A tile is a block of kRows lines for every 64 columns.
template <int kD, int kRows>
__device__ inline void load_rows(uint32_t to, const CUtensorMap& map, int column, int row, int b, uint32_t barrier) {
#pragma unroll
  for (int c = 0; c < kD / 64; ++c)
#pragma unroll
    for (int r = 0; r < kRows; r += 64)
      load_block(to + (c * kRows + r) * 128, map, column + c * 64, row + r, b, barrier);
}

// The warpgroup's rows of an own tile, as left factor of products over the head size. kKept: in registers. A loop over
// tiles has two of them in its body, as ptxas 13.0 gives kept rows that the body names once to other values.
template <class F, bool kKept>
struct OwnRows {
  uint32_t tile, kept[kKept ? F::kD / 16 : 1][4];
  __device__ explicit OwnRows(uint32_t from) : tile(from) {
    if constexpr (kKept) {
      const uint32_t lane = lane_address<64>(from, int(threadIdx.x) % 128 / 32 * 16);
#pragma unroll
      for (int k = 0; k < F::kD / 16; ++k)
        load_fragment(kept[k], fragment_at<64>(lane, 0, k % 4) + k / 4 * F::kOwn * 128);
    }
  }
  // d (64, kR * 2) = rows y^T;  y: as many rows of a tile across as d has columns
  template <int kR>
  __device__ void product(float (&d)[kR], uint32_t y) const {
    const uint64_t left = descriptor(uniform(int(tile)), false), right = descriptor(y, false);
#pragma unroll
    for (int k = 0; k < F::kD / 16; ++k) {
      const int block = k / 4, in_block = k % 4 * int(kStepOf16<false>);
      const uint64_t to_right = advanced(right, block * (F::kAcross * 128 >> 4) + in_block);
      if constexpr (kKept) wgmma_bf16<false>(d, kept[k], to_right, k > 0);
      else wgmma_bf16<false, false>(d, advanced(left, block * (F::kOwn * 128 >> 4) + in_block), to_right, k > 0);
    }
  }
};
// d (64,kD) += x y; x (64,16 kK) in registers, y: the rows of a tile, turned
template <int kK, int kR>
__device__ inline void product_nn(float (&d)[kR], const uint32_t (&x)[kK][4], uint64_t y) {
#pragma unroll
  for (int k = 0; k < kK; ++k) wgmma_bf16<true>(d, x[k], advanced(y, k * int(kStepOf16<true>)));
}

// 16 columns of accumulators are the left factor of a step of 16.
template <int kK, int kR>
__device__ inline void round_to(uint32_t (&x)[kK][4], const float (&d)[kR]) {
  static_assert(kR == kK * 8);
#pragma unroll
  for (int k = 0; k < kK; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) x[k][i] = pack(d[k * 8 + i * 2], d[k * 8 + i * 2 + 1]);
}

// A warpgroup's 64 rows on their way out: to its rows of a tile, then by bulk copies.
template <int kRows, int kR>
__device__ inline void write_rows(uint32_t tile, const float (&d)[kR], float factor) {
  const int row = int(threadIdx.x) % 128 / 32 * 16 + int(threadIdx.x) % 32 / 4, lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kR / 4; ++j) {
    const uint32_t to = tile + (j / 8 * kRows + row) * 128 + ((j % 8 ^ (row & 7)) << 4) + lane % 4 * 4;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(pack(d[j * 4] * factor, d[j * 4 + 1] * factor)) : "memory");
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + 8 * 128), "r"(pack(d[j * 4 + 2] * factor, d[j * 4 + 3] * factor))
                 : "memory");
  }
}
template <int kD, int kRows>
__device__ inline void store_rows(const CUtensorMap& map, int column, int row, int b, uint32_t tile) {
#pragma unroll
  for (int c = 0; c < kD / 64; ++c) store_block(map, column + c * 64, row, b, tile + c * kRows * 128);
}

// s = -inf where hidden; the rows of s are queries, or those of keys where it is transposed
template <Rows kIs, int kR>
__device__ inline void hide(const Mask& mask, float (&s)[kR], int row0, int column0) {
  const int lane = int(threadIdx.x) % 32, warp_row = int(threadIdx.x) % 128 / 32 * 16;
#pragma unroll
  for (int i = 0; i < kR; ++i) {
    const int row = row0 + warp_row + i % 4 / 2 * 8 + lane / 4, column = column0 + i / 4 * 8 + 2 * (lane % 4) + i % 2;
    if (!(kIs == Rows::queries ? mask.sees(row, column) : mask.sees(column, row))) s[i] = -INFINITY;
  }
}

}  // namespace octet::BACKEND::hopper
