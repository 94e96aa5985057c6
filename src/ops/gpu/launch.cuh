#pragma once
// Small kernels in close order: each may begin while the one ahead of it in the stream still runs (programmatic
// dependent launch, Hopper and later), so that its launch, and the reading of what was there long before, cost no time.
//
// A kernel that is launched so calls grid_dependency_wait() in every block before it touches anything that the kernels
// ahead write or read. A kernel that calls grid_dependency_trigger() allows the next one to start as soon as all its
// own blocks have; without that, and ahead of a kernel that is launched as usual, nothing overlaps. in_order() is both,
// first of all.
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
