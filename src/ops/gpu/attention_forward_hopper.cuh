#pragma once
// The producer side of attention_forward_hopper.cu, and what it shares with the consumers
// (attention_forward_strips.cuh): tile sizes, the layout of shared memory, the order of work.
#include "ops/gpu/attention_common.cuh"
#include "ops/gpu/hopper.cuh"
#include "ops/gpu/wgmma.cuh"

namespace octet::BACKEND::hopper {

constexpr int kStrip = 64;  // query rows of a consumer warpgroup

// kGroups: consumer warpgroups; kBefore: how many quarters of a tile's exponentials are computed before the wait for p
// v.
template <int kD_, int kGroups_, int kKeys_, int kStages_, int kBefore_>
struct ForwardForm {
  static constexpr int kD = kD_, kGroups = kGroups_, kKeys = kKeys_, kStages = kStages_, kBefore = kBefore_;
  static constexpr int kThreads = 128 * (kGroups + 1), kRows = kStrip * kGroups;
  static constexpr int kStripBytes = kStrip * kD * 2, kKeyBytes = kKeys * kD * 2;
  static constexpr int kKeyBlock = kKeys * 128;  // 64 columns of a tile of keys
  static constexpr int kComputing = kGroups == 2 ? 232 : 160, kLoading = kGroups == 2 ? 40 : 32;  // registers
  // Shared memory: q and o of each strip, stages of keys and of values, their barriers, the row tile of each strip
  static constexpr int kO = kGroups * kStripBytes, kK = 2 * kO, kV = kK + kStages * kKeyBytes;
  static constexpr int kQFull = kV + kStages * kKeyBytes, kQEmpty = kQFull + kGroups * 8;
  static constexpr int kKFull = kQEmpty + kGroups * 8, kVFull = kKFull + kStages * 16, kTile = kVFull + kStages * 16;
  static constexpr int kSharedBytes = kTile + kGroups * 4 + 1024;  // 1024: for alignment
  // The keys at the positions of a strip's rows are within one tile, so that every row attends to a key of its first
  // tile.
  static_assert(kKeys % kStrip == 0 && kD % 64 == 0 && kSharedBytes <= 232448);
};

struct ForwardParams {
  CUtensorMap q, keys;  // of qkv (width, T, B), in boxes of 64 columns x kStrip rows, and x kKeys rows
  CUtensorMap o;        // (H*D, T, B), in boxes of 64 columns x kStrip rows
  float* lse;           // (B, H, T)
  int* taken;           // counts row tiles taken beyond each block's first; null if there are no more
  Schedule schedule;
  Mask mask;
  int H, group, T;
  int q_step, kv_step, k0, v0;  // columns of qkv
  float scale;                  // of base-2 scores
};

struct RowTile {
  int b, h, row0, first, last;  // tiles of keys
};
template <class F>
__device__ inline bool find(const ForwardParams& p, int at, RowTile& t) {
  if (at >= p.schedule.tiles * p.schedule.heads) return false;
  int tile, head;
  p.schedule.pick(at, &tile, &head);
  t.b = head / p.H, t.h = head % p.H, t.row0 = tile * F::kRows;
  t.last = (min(t.row0 + F::kRows, p.T) - 1) / F::kKeys, t.first = p.mask.keys_of(t.b, t.row0).begin / F::kKeys;
  return true;
}

template <class F, int kTiles, int kFull>
struct KeyRing {  // a ring of stages of keys, or of values
  uint32_t shared;
  int stage = 0;
  uint32_t parity = 0;
  __device__ explicit KeyRing(uint32_t s) : shared(s) {}
  __device__ uint32_t tile() const { return shared + kTiles + stage * F::kKeyBytes; }
  __device__ uint32_t full() const { return shared + kFull + stage * 16; }
  __device__ uint32_t empty() const { return full() + 8; }
  __device__ void step() {
    if (++stage == F::kStages) stage = 0, parity ^= 1;
  }
  __device__ void load(const ForwardParams& p, int column, int tile_of_keys, int b) {  // by the producer thread
    mbarrier_wait(empty(), parity ^ 1);
    mbarrier_expect(full(), F::kKeyBytes);
#pragma unroll
    for (int c = 0; c < F::kD / 64; ++c)
      tma_load(tile() + c * F::kKeyBlock, p.keys, column + c * 64, tile_of_keys * F::kKeys, b, full());
    step();
  }
  __device__ void wait() const { mbarrier_wait(full(), parity); }  // by the consumers
  __device__ uint32_t next() {                                     // -> the barrier to release() once the tile is read
    const uint32_t read = empty();
    step();
    stage = uniform(stage), parity = uniform(int(parity));
    return read;
  }
};
__device__ inline void release(uint32_t barrier) {  // by each warp
  if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}
template <class F>
using Keys = KeyRing<F, F::kK, F::kKFull>;
template <class F>
using Values = KeyRing<F, F::kV, F::kVFull>;

// Loads the strips of q, and passes the consumers the number of their row tile with it; at the end, a number beyond the
// last and no q.
template <class F>
__device__ inline void load_q(const ForwardParams& p, uint32_t shared, int at, const RowTile* t, uint32_t parity) {
  for (int g = 0; g < F::kGroups; ++g) {
    const uint32_t full = shared + F::kQFull + g * 8, to = shared + g * F::kStripBytes;
    mbarrier_wait(shared + F::kQEmpty + g * 8, parity);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared + F::kTile + g * 4), "r"(at) : "memory");
    mbarrier_expect(full, t ? F::kStripBytes : 0);
    if (!t) continue;
#pragma unroll
    for (int c = 0; c < F::kD / 64; ++c)
      tma_load(to + c * kBlockBytes, p.q, t->h * p.q_step + c * 64, t->row0 + g * kStrip, t->b, full);
  }
}

// The block's row tiles, the longest first. The number of the next one is fetched while the present one is loaded.
template <class F>
__device__ inline void produce(const ForwardParams& p, uint32_t shared) {
  Keys<F> k(shared);
  Values<F> v(shared);
  uint32_t parity = 1;
  int at = int(blockIdx.x);
  for (RowTile t; find<F>(p, at, t); parity ^= 1) {
    const int next = int(gridDim.x) + (p.taken ? atomicAdd(p.taken, 1) : 0);
    const int column = p.k0 + t.h / p.group * p.kv_step, to_values = p.v0 - p.k0;
    k.load(p, column, t.last, t.b);
    load_q<F>(p, shared, at, &t, parity);
    for (int n = t.last; n > t.first; --n) {
      k.load(p, column, n - 1, t.b);
      v.load(p, column + to_values, n, t.b);
    }
    v.load(p, column + to_values, t.first, t.b);
    at = next;
  }
  load_q<F>(p, shared, at, nullptr, parity);
}

}  // namespace octet::BACKEND::hopper
