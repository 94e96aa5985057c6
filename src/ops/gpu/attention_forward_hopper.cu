// Attention forward in bf16 for Hopper, head sizes 64 and 128: TMA, wgmma and warp specialisation.
//                                                            Shah et al. 2024 (FlashAttention-3), arXiv:2407.08608
// One thread of the producer warpgroup loads keys and values into two rings of stages. Each consumer warpgroup owns a
// strip of 64 query rows of the block's row tile, and goes through the tiles of keys from its diagonal backwards: it
// issues s = q k^T of a tile together with o += p v of the tile before, and while the tensor cores work on them,
// another warpgroup computes its softmax. The warpgroups take turns at issuing products ("ping-pong"). Thread blocks
// are persistent.
#include "ops/gpu/attention_forward_strips.cuh"
#include "ops/gpu/attention_kernels.h"
#include "ops/gpu/tensor_map.h"

namespace octet::BACKEND {
namespace hopper {
namespace {

// full: the producer arrives, with the bytes of its copies; the consumers wait. empty: each warp that read the tile
// arrives; the producer waits before it overwrites it.
template <class F>
__device__ inline void init_barriers(uint32_t shared) {
  for (int g = 0; g < F::kGroups; ++g) {
    mbarrier_init(shared + F::kQFull + g * 8, 1);
    mbarrier_init(shared + F::kQEmpty + g * 8, 4);
  }
  for (int s = 0; s < 2 * F::kStages; ++s) {  // stages of keys, then of values
    mbarrier_init(shared + F::kKFull + s * 16, 1);
    mbarrier_init(shared + F::kKFull + s * 16 + 8, 4 * F::kGroups);
  }
  fence_mbarrier_init();
  fence_async_proxy();
}

template <class F>
__global__ void __launch_bounds__(F::kThreads, 1) forward_kernel(const __grid_constant__ ForwardParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // never launched on other cards
  extern __shared__ uint8_t raw_tiles[];
  const uint32_t shared = (shared_address(raw_tiles) + 1023) & ~1023u;
  if (threadIdx.x == 0) init_barriers<F>(shared);
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<F::kLoading>();
    if (threadIdx.x == 0) produce<F>(p, shared);
  } else {
    take_registers<F::kComputing>();
    Strips<F> strips(p, shared);
    uint32_t parity = 0;
    for (RowTile t; strips.next(t, parity); parity ^= 1) strips.compute(t);
    strips.turns.end();
    tma_store_wait();
  }
#endif
}

template <class F>
void run(Stream& s, const AttentionForward& t, const Attention& a) {
  const Heads& heads = a.heads;
  const QkvLayout layout(heads);
  const auto map = [&](Tensor x, int64_t columns, int rows) {
    return tensor_map<3>(x.dtype, x.data, {columns, a.T, a.B}, {columns * 2, columns * a.T * 2}, {64, rows, 1});
  };
  ForwardParams p{map(t.qkv, heads.width(), kStrip),
                  map(t.qkv, heads.width(), F::kKeys),
                  map(t.o, heads.H * heads.D, kStrip),
                  t.lse.ptr<float>(),
                  static_cast<int32_t*>(t.workspace.data),
                  schedule(a.T, F::kRows, a.B * heads.H, a.T * heads.D * 4 * heads.G / heads.H, true),
                  mask_of(a)};
  p.H = int(heads.H), p.group = int(heads.H / heads.G), p.T = int(a.T), p.scale = float(a.scale) * kLog2e;
  p.q_step = int(layout.q_step), p.kv_step = int(layout.kv_step), p.k0 = int(layout.k0), p.v0 = int(layout.v0);
  const int blocks = std::min(p.schedule.blocks(), s.target().multiprocessors);
  if (blocks == p.schedule.blocks()) p.taken = nullptr;
  else CUDA_CHECK(cudaMemsetAsync(p.taken, 0, sizeof(int32_t), raw(s)));
  launch(forward_kernel<F>, blocks, F::kThreads, F::kSharedBytes, s, p);
}

}  // namespace
}  // namespace hopper

void attention_forward_hopper(Stream& s, const AttentionForward& t, const Attention& a) {
  if (a.heads.D == 64) hopper::run<hopper::ForwardForm<64, 3, 128, 4, 4>>(s, t, a);
  else hopper::run<hopper::ForwardForm<128, 2, 128, 2, 2>>(s, t, a);
}

}  // namespace octet::BACKEND
