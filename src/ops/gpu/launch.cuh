#pragma once
// Programmatic dependent launch (PDL, Hopper and later): a kernel launched by launch_pdl() may begin while the one
// ahead of it in the stream still runs, which hides its launch and its prologue.
//
// Such a kernel calls grid_dependency_wait() in every block before it touches anything that earlier kernels write or
// read. A kernel that calls grid_dependency_trigger() lets the next one begin as soon as all of its own blocks have
// called it or ended; without the call, or if the next kernel is launched ordinarily, nothing overlaps. in_order() is
// both calls, for the beginning of a kernel.
#include <utility>

#include "device/gpu.h"

namespace octet::BACKEND {

__device__ inline void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void grid_dependency_trigger() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void in_order() {
  grid_dependency_wait();
  grid_dependency_trigger();
}

struct Grid {
  dim3 blocks;
  unsigned threads = 0;
  size_t shared = 0;  // bytes
};
template <class... P, class... A>
void launch_pdl(Stream& s, void (*kernel)(P...), const Grid& grid, A&&... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t c{};
  c.gridDim = grid.blocks;
  c.blockDim = dim3(grid.threads);
  c.dynamicSmemBytes = grid.shared;
  c.stream = raw(s);
  c.attrs = &early;
  c.numAttrs = s.target().compute_capability >= 90 ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&c, kernel, std::forward<A>(arguments)...));
}

}  // namespace octet::BACKEND
