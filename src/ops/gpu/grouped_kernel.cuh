#pragma once
// The kernel of grouped_gemm and grouped_gradient for Hopper: one launch multiplies the rows of all experts.
//
// A thread block computes tiles of 128 x 256 (grouped_tiles.cuh): one thread of the producer warpgroup keeps a ring of
// four stages filled by TMA, two consumer warpgroups multiply 64 rows each and store them (grouped_store.cuh). The two
// blocks of a cluster compute neighbouring tiles; of the operand that both read, each loads one half, by multicast. A
// stage holds 128 bytes of the contracted axis (64 bf16 or 128 FP8), in blocks of 64 lines (wgmma.cuh).
//
// Each stage has two mbarriers in each block. `full` completes when the producer has arrived and the bytes of the
// copies of both blocks are there: the consumers wait for it. `empty` has one arrival of each consumer warp of both
// blocks: the producers wait for it before they overwrite the stage, as each writes into both blocks' shared memory.
//
// FP8 with split accumulation: the tensor cores accumulate with about 14 bits, so every 128 products are summed from
// zero and then added to fp32 registers.                           DeepSeek-AI 2024 (DeepSeek-V3), arXiv:2412.19437
#include <type_traits>

#include "ops/gpu/grouped_store.cuh"

namespace octet::BACKEND::grouped {

template <class F>
constexpr int shared_bytes() {  // + 1024: for alignment
  return kStages * kStageBytes + (F::kSums ? kZeroBytes + kStagingBytes : 0) + 1024;
}
struct Shared {  // addresses in shared memory
  uint32_t stages, zeros, staging, full, empty;
};
struct Ring {  // the place in the ring of stages
  int stage = 0;
  uint32_t parity = 0;
  __device__ void step() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// What a thread block loads of a stage: all of its own operand; half of the one that its cluster
// shares, for both blocks.
template <class F>
__device__ inline void load_stage(const Params& p, const Tile& t, int k, uint32_t to, uint32_t barrier, int rank) {
  const int a_row = F::kSums ? t.m : t.row + t.m, at = (F::kSums ? t.row : 0) + k;
  const CUtensorMap& b = F::kSums ? p.b : p.expert[t.group];
  const auto load = [&](auto shared, uint32_t place, const CUtensorMap& map, bool mn_major, int row) {
    const int x = mn_major ? row : at, y = mn_major ? at : row;
    if constexpr (decltype(shared)::value) tma_load_multicast(place, map, x, y, barrier);
    else tma_load(place, map, x, y, barrier);
  };
  constexpr std::true_type kShared;
  constexpr std::false_type kOwn;
  const uint32_t b_to = to + kTileM / 64 * kBlockBytes;
  if constexpr (F::kAlongM) {
#pragma unroll
    for (int j = 0; j < 2; ++j) load(kOwn, to + j * kBlockBytes, p.a, F::kMnMajorA, a_row + 64 * j);
#pragma unroll
    for (int j = 2 * rank; j < 2 * rank + 2; ++j) load(kShared, b_to + j * kBlockBytes, b, F::kMnMajorB, t.n + 64 * j);
  } else {
    load(kShared, to + rank * kBlockBytes, p.a, F::kMnMajorA, a_row + 64 * rank);
#pragma unroll
    for (int j = 0; j < 4; ++j) load(kOwn, b_to + j * kBlockBytes, b, F::kMnMajorB, t.n + 64 * j);
  }
}

template <class F>
__device__ void produce(const Params& p, TileScheduler<F> scheduler, const Shared& shared) {
  Ring ring;
  for (Tile t; scheduler.next(t);) {
    const int K = scheduler.contracted(t);
    for (int k = 0; k < K; k += F::kStageK, ring.step()) {
      const uint32_t barrier = shared.full + ring.stage * 8;
      mbarrier_wait(shared.empty + ring.stage * 8, ring.parity ^ 1);
      mbarrier_expect(barrier, kStageBytes);
      load_stage<F>(p, t, k, shared.stages + ring.stage * kStageBytes, barrier, scheduler.rank);
    }
  }
}

// The operands of a stage, which has four steps of one wgmma each: 32 bytes of a K-major line, or 16 lines. The last
// stage of a weight gradient may have fewer: its other steps multiply zeros.
struct Operands {
  uint64_t a, b, zeros;
  int steps;
};
template <class F>
__device__ inline Operands at_step(const Operands& o, int s, int block_of_b) {
  const bool zero = F::kSums && s >= o.steps;
  const uint64_t a = o.a + s * (F::kMnMajorA ? 2048 : 32) / 16;
  const uint64_t b = o.b + (s * (F::kMnMajorB ? 2048 : 32) + block_of_b * kBlockBytes) / 16;
  return {zero ? o.zeros : a, zero ? o.zeros : b};
}

template <class F>
__device__ inline void multiply(float (&d)[128], const Operands& o) {
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const Operands x = at_step<F>(o, s, 0);
    if constexpr (F::kIn == Input::bf16) wgmma_bf16<F::kMnMajorA, F::kMnMajorB>(d, x.a, x.b);
    else wgmma_fp8<F::kIn == Input::e5m2>(d, x.a, x.b);
  }
  wgmma_commit();
}

// Sums one stage from zero and adds it to d; half of the columns at a time, as both sums have to fit into registers.
template <class F>
__device__ inline void multiply_split(float (&d)[128], const Operands& o) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float part[64];
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const Operands x = at_step<F>(o, s, 2 * h);
      wgmma_fp8<F::kIn == Input::e5m2>(part, x.a, x.b, s > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 64; ++i) d[h * 64 + i] += part[i];
  }
}

// Both blocks of the cluster write into this stage, so both must know that it is free.
__device__ inline void release(uint32_t empty, int stage, int lane) {
  if (lane < 2) mbarrier_arrive(empty + stage * 8, lane);
}

template <class F>
__device__ inline void mainloop(float (&d)[128], int K, Ring& ring, const Shared& shared) {
  const int warpgroup = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 128; ++i) d[i] = 0;
  int busy = -1;  // the stage that the products in flight read
#pragma unroll 1
  for (; K > 0; K -= F::kStageK, ring.step()) {
    mbarrier_wait(shared.full + ring.stage * 8, ring.parity);
    const uint32_t a = shared.stages + ring.stage * kStageBytes + warpgroup * kBlockBytes;
    const uint32_t b = shared.stages + ring.stage * kStageBytes + kTileM / 64 * kBlockBytes;
    // only weight gradients have partial stages: elsewhere TMA fills in zeros beyond K
    const Operands o{descriptor(a, F::kMnMajorA), descriptor(b, F::kMnMajorB), zero_descriptor(shared.zeros),
                     ceil_of(K, F::kStepK)};
    if constexpr (F::kSplit) {
      multiply_split<F>(d, o);
      release(shared.empty, ring.stage, lane);
    } else {
      multiply<F>(d, o);
      wgmma_wait<1>();
      if (busy >= 0) release(shared.empty, busy, lane);
      busy = ring.stage;
    }
  }
  if constexpr (!F::kSplit) {
    wgmma_wait<0>();
    if (busy >= 0) release(shared.empty, busy, lane);
  }
}

template <class F>
__device__ inline float scale_of(const Params& p, const Tile& t) {
  if (F::kIn == Input::bf16 || t.group >= p.experts || t.rows <= 0) return 1;  // without rows, nobody wrote a scale
  return *p.a_scale[t.group] * *p.b_scale[t.group];
}

template <class F>
__global__ void __launch_bounds__(kThreads, 1) grouped_kernel(const __grid_constant__ Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // never launched on other cards
  extern __shared__ uint8_t raw_stages[];
  __shared__ alignas(8) uint64_t barriers[2 * kStages];
  __shared__ Groups groups;
  const uint32_t stages = (shared_address(raw_stages) + 1023) & ~1023u, full = shared_address(barriers);
  const uint32_t zeros = stages + kStages * kStageBytes;
  const Shared shared{stages, zeros, zeros + kZeroBytes, full, full + kStages * 8};
  const int rank = int(cluster_rank());
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(shared.full + s * 8, 1);
      mbarrier_init(shared.empty + s * 8, 2 * kConsumerWarps);
    }
    fence_mbarrier_init();
  }
  if (F::kSums && threadIdx.x < kZeroBytes / 16) store_shared(shared.zeros + threadIdx.x * 16, make_float4(0, 0, 0, 0));
  fence_async_proxy();
  find_groups<F>(p, groups);
  __syncthreads();
  cluster_sync();
  TileScheduler<F> scheduler(p, groups, rank);
  if (threadIdx.x < 128) {
    give_registers<40>();
    if (threadIdx.x == 0) produce<F>(p, scheduler, shared);
    __syncwarp();
    cluster_sync();  // the other block may still write into this one's shared memory, or arrive at its barriers
  } else {
    take_registers<232>();
    Ring ring;
    for (Tile t; scheduler.next(t);) {
      const float scale = scale_of<F>(p, t);
      float d[128];
      mainloop<F>(d, scheduler.contracted(t), ring, shared);
      store<F>(p, t, d, scale, shared.staging);
    }
    if (F::kSums) tma_store_wait();
    cluster_sync();
  }
#endif
}

template <class F>
void launch(Stream& s, const Params& p) {
  CUDA_CHECK(cudaFuncSetAttribute(grouped_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<F>()));
  cudaLaunchAttribute cluster{.id = cudaLaunchAttributeClusterDimension};
  cluster.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(unsigned(s.target().multiprocessors / 2 * 2 * p.rounds));
  launch.blockDim = dim3(kThreads);
  launch.dynamicSmemBytes = shared_bytes<F>();
  launch.stream = raw(s);
  launch.attrs = &cluster;
  launch.numAttrs = 1;
  CUDA_CHECK(cudaLaunchKernelEx(&launch, grouped_kernel<F>, p));
}

}  // namespace octet::BACKEND::grouped
