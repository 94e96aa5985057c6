#pragma once
// What the two backward kernels for Hopper share: dq (attention_backward_q_hopper.cu) and dk, dv
// (attention_backward_kv_hopper.cu). Why two kernels: attention_backward.cuh.
//
// A thread block owns kOwn rows (64 a consumer warpgroup) of two matrices, q and do or k and v, which stay in shared
// memory; tiles of kStreamed rows of the other two pass through a ring of stages. One thread of the producer warpgroup
// issues the TMA copies, two consumer warpgroups issue wgmma. p and ds never leave registers, where they are the left
// factors of the second products.
//                         Shah et al. 2024 (FlashAttention-3), arXiv:2407.08608; Dao 2023, arXiv:2307.08691
#include "ops/gpu/attention_backward.cuh"
#include "ops/gpu/attention_kernels.h"
#include "ops/gpu/hopper.cuh"
#include "ops/gpu/tensor_map.h"
#include "ops/gpu/wgmma.cuh"
#include "ops/workspace.h"

namespace octet::BACKEND::hopper {

struct Backward {
  CUtensorMap qkv, d_o, dqkv;  // (columns, T, B), copied in boxes of 64 columns x 64 rows
  BackwardParams p;
  float* statistics;  // (B, H, tiles of 64 rows, 2, 64): -lse log2(e), then delta; zeros beyond T
  int row_tiles;
  __device__ float* statistics_of(int b, int h, int row) const {  // -lse log2(e) of a row; its delta is 64 floats on
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

// The sizes of a kernel. Own rows are left factors: those of the first kKept own matrices stay in registers, the others
// are read from shared memory for every product.
template <int kD_, int kStreamed_, int kStages_, int kGroups_, int kKept_>
struct BackwardForm {
  static constexpr int kD = kD_, kStreamed = kStreamed_, kStages = kStages_, kGroups = kGroups_, kKept = kKept_;
  static constexpr int kOwn = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kOwnBytes = kOwn * kD * 2, kStreamedBytes = kStreamed * kD * 2, kRowsBytes = 2 * kStreamed * 4;
  static constexpr int kConsumerRegisters = kGroups == 2 ? 240 : 160, kProducerRegisters = kGroups == 2 ? 24 : 32;
  // Shared memory: the own rows, the stages, two statistics of each row of a stage, the mbarriers
  static constexpr int kStagesAt = 2 * kOwnBytes, kRowsAt = kStagesAt + kStages * 2 * kStreamedBytes;
  static constexpr int kBarriersAt = kRowsAt + kStages * kRowsBytes;
  static constexpr int kSharedBytes = kBarriersAt + 16 * kStages + 8 + 1024;  // 1024: for alignment
  static_assert(kSharedBytes <= 232448 && kStages >= 2);  // a warpgroup waits for a tile while it holds the last one
};

template <class F>
struct Shared {
  uint32_t start;
  __device__ explicit Shared(const void* dynamic) : start((shared_address(dynamic) + 1023) & ~1023u) {}
  __device__ void init() const {
    for (int s = 0; s < F::kStages; ++s) mbarrier_init(full(s), 1), mbarrier_init(empty(s), 128 * F::kGroups);
    mbarrier_init(own_full(), 1);
    fence_mbarrier_init();
  }
  __device__ uint32_t own() const { return start; }  // of the first matrix; the second is kOwnBytes on
  __device__ uint32_t streamed(int stage) const { return start + F::kStagesAt + stage * 2 * F::kStreamedBytes; }
  __device__ uint32_t rows(int stage) const { return start + F::kRowsAt + stage * F::kRowsBytes; }
  __device__ uint32_t full(int stage) const { return start + F::kBarriersAt + stage * 16; }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
  __device__ uint32_t own_full() const { return full(F::kStages); }
  __device__ void release(int stage) const { mbarrier_arrive(empty(stage)); }  // by every thread that read the stage
};

template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void step() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// ---- the producer
struct Columns {  // the kD columns of a head in one of the matrices
  const CUtensorMap& map;
  int first;
};
// kRows rows to shared memory: for every 64 columns, kRows lines of 128 bytes.
template <int kD, int kRows>
__device__ inline void load_rows(uint32_t to, const Columns& from, int row, int b, uint32_t barrier) {
#pragma unroll
  for (int c = 0; c < kD / 64; ++c)
#pragma unroll
    for (int r = 0; r < kRows; r += 64)
      tma_load(to + (c * kRows + r) * 128, from.map, from.first + c * 64, row + r, b, barrier);
}
template <class F>
__device__ inline void load_own(const Shared<F>& shared, const Columns& x, const Columns& y, int row, int b) {
  mbarrier_expect(shared.own_full(), 2 * F::kOwnBytes);
  load_rows<F::kD, F::kOwn>(shared.own(), x, row, b, shared.own_full());
  load_rows<F::kD, F::kOwn>(shared.own() + F::kOwnBytes, y, row, b, shared.own_full());
}
// Once its stage is empty. more_bytes: what the caller loads into the stage besides.
template <class F>
__device__ inline void load_streamed(const Shared<F>& shared, const Ring<F::kStages>& ring, const Columns& x,
                                     const Columns& y, int row, int b, int more_bytes = 0) {
  const uint32_t to = shared.streamed(ring.stage), full = shared.full(ring.stage);
  mbarrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
  mbarrier_expect(full, 2 * F::kStreamedBytes + more_bytes);
  load_rows<F::kD, F::kStreamed>(to, x, row, b, full);
  load_rows<F::kD, F::kStreamed>(to + F::kStreamedBytes, y, row, b, full);
}

// ---- the consumers
// Moves a warpgroup's cursor to its next visible tile; releases the stages of tiles that the mask hides from its rows.
// busy: the stage that products under way may still read, or -1. It is released before any hidden tile: the producer
// may need it to go on.
template <class F, class Cursor>
__device__ inline bool find_visible(const Shared<F>& shared, Cursor& cursor, int& busy) {
  for (; cursor.more(); cursor.step()) {
    mbarrier_wait(shared.full(cursor.ring.stage), cursor.ring.parity);
    if (cursor.visible()) return true;
    if (busy >= 0) wgmma_wait<0>(), shared.release(busy), busy = -1;
    shared.release(cursor.ring.stage);
  }
  return false;
}

// The warpgroup's 64 rows of an own matrix, as left factor of products over the head size. kKept: in registers. Loops
// over tiles are unrolled to two tiles, as ptxas 13.0 reuses the registers of kept rows that the loop names only once.
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
  // d (64, kR * 2) = rows y^T;  y: as many rows of a streamed tile as d has columns
  template <int kR>
  __device__ void product(float (&d)[kR], uint32_t y) const {
    const uint64_t left = descriptor(uniform(int(tile)), false), right = descriptor(y, false);
#pragma unroll
    for (int k = 0; k < F::kD / 16; ++k) {
      const int block = k / 4, in_block = k % 4 * int(kStepOf16<false>);
      const uint64_t to_right = advanced(right, block * (F::kStreamed * 128 >> 4) + in_block);
      if constexpr (kKept) wgmma_bf16<false>(d, kept[k], to_right, k > 0);
      else wgmma_bf16<false, false>(d, advanced(left, block * (F::kOwn * 128 >> 4) + in_block), to_right, k > 0);
    }
  }
};
// d (64,kD) += x y;  x (64, 16 kK) in registers, y: 16 kK rows of a streamed tile
template <int kK, int kR>
__device__ inline void product_nn(float (&d)[kR], const uint32_t (&x)[kK][4], uint64_t y) {
#pragma unroll
  for (int k = 0; k < kK; ++k) wgmma_bf16<true>(d, x[k], advanced(y, k * int(kStepOf16<true>)));
}

// Accumulators d (64, 16 kK), rounded to bf16: in the same layout they are left factors of kK steps of 16.
template <int kK, int kR>
__device__ inline void round_to(uint32_t (&x)[kK][4], const float (&d)[kR]) {
  static_assert(kR == kK * 8);
#pragma unroll
  for (int k = 0; k < kK; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) x[k][i] = pack_bf16(d[k * 8 + i * 2], d[k * 8 + i * 2 + 1]);
}

// Zeros that the compiler does not know to be zeros: otherwise it would set them between the products.
template <int kR>
__device__ inline void clear(float (&d)[kR]) {
#pragma unroll
  for (int i = 0; i < kR; ++i) d[i] = 0;
  hold(d);
}

// A warpgroup's 64 rows of d * factor, as bf16, into its rows of a tile.
template <int kRows, int kR>
__device__ inline void write_rows(uint32_t tile, const float (&d)[kR], float factor) {
  const int row = int(threadIdx.x) % 128 / 32 * 16 + int(threadIdx.x) % 32 / 4, lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kR / 4; ++j) {
    const uint32_t to = tile + (j / 8 * kRows + row) * 128 + ((j % 8 ^ (row & 7)) << 4) + lane % 4 * 4;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(pack_bf16(d[j * 4] * factor, d[j * 4 + 1] * factor))
                 : "memory");
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + 8 * 128),
                 "r"(pack_bf16(d[j * 4 + 2] * factor, d[j * 4 + 3] * factor))
                 : "memory");
  }
}
template <int kR>
struct Result {
  const float (&d)[kR];
  float factor;
  uint32_t tile;  // the warpgroup's own rows, whose place in shared memory it takes
  int column;     // of dqkv
};
// Results leave through shared memory by TMA, which leaves out what lies beyond T.
template <class F, class... R>
__device__ inline void store_results(const CUtensorMap& dqkv, int row, int b, int warpgroup, const R&... results) {
  warpgroup_sync(warpgroup);  // all of it has read its own rows for the last time
  (write_rows<F::kOwn>(results.tile, results.d, results.factor), ...);
  fence_async_proxy();
  warpgroup_sync(warpgroup);
  if (threadIdx.x % 128 > 0) return;
  const auto store = [&](uint32_t tile, int column) {
#pragma unroll
    for (int c = 0; c < F::kD / 64; ++c) tma_store(dqkv, column + c * 64, row, b, tile + c * F::kOwn * 128);
  };
  (store(results.tile, results.column), ...);
  tma_store_commit();
  tma_store_wait_read<0>();
}

// s = -inf where the mask hides it; the rows of s are queries, or keys where s is transposed
template <Rows kIs, int kR>
__device__ inline void hide(const Mask& mask, float (&s)[kR], int b, int row0, int column0) {
  const int lane = int(threadIdx.x) % 32, warp_row = int(threadIdx.x) % 128 / 32 * 16;
  const Span seen[2] = {mask.columns_of<kIs>(b, row0 + warp_row + lane / 4),
                        mask.columns_of<kIs>(b, row0 + warp_row + 8 + lane / 4)};
#pragma unroll
  for (int i = 0; i < kR; ++i)
    if (!seen[i % 4 / 2].contains(column0 + i / 4 * 8 + 2 * (lane % 4) + i % 2)) s[i] = -INFINITY;
}

// ---- the kernel. Work: what one thread block does.
template <class Work>
__global__ void __launch_bounds__(Work::Form::kThreads, 1) backward_kernel(const __grid_constant__ Backward x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // never launched on other cards
  using F = typename Work::Form;
  extern __shared__ char dynamic[];
  const Shared<F> shared(dynamic);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const Work work(x, int(blockIdx.x));
  if (threadIdx.x < 128) {
    give_registers<F::kProducerRegisters>();
    if (threadIdx.x == 0) work.produce(shared);
  } else {
    take_registers<F::kConsumerRegisters>();
    work.consume(shared);
  }
#endif
}

template <class Work>
void run_backward(Stream& s, const AttentionBackward& t, const Attention& a) {
  using F = typename Work::Form;
  const Backward x = backward_of(t, a, Work::schedule(a));
  launch(backward_kernel<Work>, x.p.schedule.blocks(), F::kThreads, F::kSharedBytes, s, x);
}

}  // namespace octet::BACKEND::hopper
