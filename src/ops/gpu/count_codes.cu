// Counts the codes of an FP8 tensor at the ends of its format (largest values, zeros), and sums their squares: 16 codes
// a load, integer sums.
#include "ops/formulas.h"
#include "ops/gpu/vector.cuh"

namespace octet::BACKEND {

namespace {

// In each byte: 1 where a and b agree.
__device__ uint32_t equal_bytes(uint32_t a, uint32_t b) { return __vcmpeq4(a, b) & 0x01010101u; }

// The first 16 * packs codes by 16, the rest one by one.
__global__ void __launch_bounds__(256)
    count_kernel(uint32_t* counts, const uint8_t* q, int64_t n, int64_t packs, uint32_t top, const CodeSquares given) {
  __shared__ CodeSquares squares;
  for (int i = threadIdx.x; i < 128; i += blockDim.x) squares.of[i] = given.of[i];
  __syncthreads();
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  const int64_t first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  uint32_t largest = 0, zeros = 0;
  uint64_t sum = 0;
  const auto take = [&](uint32_t four) {
    const uint32_t magnitudes = four & 0x7f7f7f7fu;
    largest += __popc(equal_bytes(magnitudes, top));
    zeros += __popc(equal_bytes(magnitudes, 0));
#pragma unroll
    for (int byte = 0; byte < 32; byte += 8) sum += squares.of[magnitudes >> byte & 0x7f];
  };
  for (int64_t i = first; i < packs; i += stride) {
    const uint4 v = reinterpret_cast<const uint4*>(q)[i];
    take(v.x), take(v.y), take(v.z), take(v.w);
  }
  for (int64_t i = packs * 16 + first; i < n; i += stride)
    take(q[i] | 0x7f7f7f00u);  // the other three bytes are NaN, which is neither and has no square
  largest = __reduce_add_sync(0xffffffffu, largest);
  zeros = __reduce_add_sync(0xffffffffu, zeros);
#pragma unroll
  for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (threadIdx.x % 32 != 0) return;
  if (largest) atomicAdd(counts + 1, largest);  // integers: the order does not matter
  if (zeros) atomicAdd(counts + 2, zeros);
  if (sum) {  // in words, as counts are aligned to 4 bytes; who makes the lower one wrap carries
    const uint32_t low = uint32_t(sum), before = atomicAdd(counts + 4, low);
    atomicAdd(counts + 5, uint32_t(sum >> 32) + (before + low < before));
  }
  if (first == 0) atomicAdd(counts, uint32_t(n));
}

}  // namespace

void count_codes(Stream& s, Tensor counts, Tensor q) {
  const Timed timed(s, Kernel::quantize);
  CHECK(is_fp8(q.dtype) && counts.numel() == 6, name_of(q.dtype), ", counts ", counts.shape);
  if (q.numel() == 0) return;
  const uint32_t top = q.dtype == DType::e4m3 ? e4m3(e4m3::largest()).bits : e5m2(e5m2::largest()).bits;
  const int64_t n = std::min(q.numel(), kMostCounted), packs = aligned({q.data}) ? n / 16 : 0;
  const int64_t blocks = std::min<int64_t>(blocks_for(n, 256 * 16), 4 * s.target().multiprocessors);
  count_kernel<<<unsigned(blocks), 256, 0, raw(s)>>>(
      counts.ptr<uint32_t>(), static_cast<const uint8_t*>(q.data), n, packs, top * 0x01010101u,
      q.dtype == DType::e4m3 ? CodeSquares::make<e4m3>() : CodeSquares::make<e5m2>());
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace octet::BACKEND
