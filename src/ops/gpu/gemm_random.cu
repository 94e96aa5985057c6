// Random data for timing: products of zeros draw less power, and so run at higher clocks than real ones.
#include "base/rng.h"
#include "ops/gpu/gemm_plans.h"

namespace octet::BACKEND {
namespace {

template <class T>
__global__ void random_kernel(T* p, int64_t n, float std, uint64_t stream) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    const uint64_t r = random_bits(0, stream, uint64_t(i));
    const float sum = float(r & 0xffff) + float(r >> 16 & 0xffff) + float(r >> 32 & 0xffff) + float(r >> 48);
    p[i] = T(std * (sum * 0x1p-16f - 2) * 1.7320508f);  // a sum of four uniform numbers has variance 4/12
  }
}

}  // namespace

void fill_random(Stream& s, Tensor x, uint64_t stream) {
  const float std = is_fp8(x.dtype) ? 100.f : 1.f;  // the largest number, 3.46 std, is near E4M3's 448
  visit<float, bf16, e4m3, e5m2>(x.dtype, [&]<class T>() {
    random_kernel<<<4 * s.target().multiprocessors, 256, 0, raw(s)>>>(x.ptr<T>(), x.numel(), std, stream);
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace octet::BACKEND
