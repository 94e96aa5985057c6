#pragma once
// Hopper's asynchronous copies and their synchronisation: TMA, mbarriers (also across a cluster of two thread blocks),
// reallocation of registers between warpgroups. Tensor cores: wgmma.cuh.                                PTX ISA 8.5
#include <cuda.h>

#include <cstdint>

#include "ops/gpu/instructions.cuh"

namespace octet::BACKEND::hopper {

// ---- mbarriers, named by their address in the block's shared memory. A barrier completes a phase when all arrivals
// and all expected bytes are there; phases have parity 0, 1, 0, … mbarrier_wait(b, p) returns once the current phase
// has another parity than p, that is, once the last phase of parity p is complete: on a fresh barrier a wait for parity
// 1 returns at once.
__device__ inline void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void mbarrier_expect(uint32_t barrier, uint32_t bytes) {  // arrives, and expects bytes from copies
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void mbarrier_arrive(uint32_t barrier, uint32_t block) {  // at the barrier of a block of the cluster
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(block)
      : "memory");
}
__device__ inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\nbra again;\nover:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ inline uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}

// ---- copies to shared memory, whose arrival completes `barrier`
// Consecutive bytes; their number and both addresses are multiples of 16.
__device__ inline void tma_load_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// The box of a matrix at (x, y).
__device__ inline void tma_load(uint32_t to, const CUtensorMap& map, int x, int y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// The box of a three-dimensional tensor at (x, y, z).
__device__ inline void tma_load(uint32_t to, const CUtensorMap& map, int x, int y, int z, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}
// To the same place in both thread blocks of the cluster, completing the barrier of each.
__device__ inline void tma_load_multicast(uint32_t to, const CUtensorMap& map, int x, int y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(uint16_t(3))
      : "memory");
}
// ---- copies from shared memory; what lies beyond the tensor's edges is left out. The thread that starts them commits
// them in groups, by which it waits.
__device__ inline void tma_store(const CUtensorMap& map, int x, int y, int z, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(x),
               "r"(y), "r"(z), "r"(from)
               : "memory");
}
__device__ inline void tma_store(const CUtensorMap& map, int x, int y, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
               "r"(y), "r"(from)
               : "memory");
}
// Adds a box of 64 x 32 fp32 to a matrix, in L2.
__device__ inline void tma_reduce_add(const CUtensorMap& map, int x, int y, uint32_t from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
      "r"(y), "r"(from)
      : "memory");
}
__device__ inline void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void tma_store_wait_read() {  // all but the last kPending groups have been read from shared memory
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
__device__ inline void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ inline void store_shared(uint32_t to, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
// Named barrier 1 + warpgroup; 0 is __syncthreads().
__device__ inline void warpgroup_sync(int warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");
}

// Tells the compiler that x is the same in all lanes of the warp: descriptors made from it then stay in uniform
// registers, without moves between the products.
__device__ inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }

// setmaxnreg: producer warpgroups give registers up, consumer warpgroups take them. kCount: registers a thread
// afterwards. (CUTLASS: warpgroup_reg_dealloc, warpgroup_reg_alloc.)
template <int kCount>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace octet::BACKEND::hopper
