#pragma once
// Sums over warps and thread blocks in a fixed order, and amax, whose atomic maximum does not depend on the order.
#include "ops/gpu/launch.cuh"
#include "ops/gpu/vector.cuh"

namespace octet::BACKEND {

template <class R>
__device__ inline R warp_sum(R v) {
#pragma unroll
  for (int o = 16; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
  return v;
}

// Sums of K values over the block, for every thread. room: shared memory of K * 32 values. It has a single barrier, so
// a second call needs other room, or a barrier in between.
template <int K, class R>
__device__ inline void block_sum(R (&v)[K], R* room) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
#pragma unroll
  for (int k = 0; k < K; ++k) v[k] = warp_sum(v[k]);
  if (warps == 1) return;
  if (lane == 0)
#pragma unroll
    for (int k = 0; k < K; ++k) room[k * 32 + warp] = v[k];
  __syncthreads();
  const int from = warps <= 4 ? lane % 4 : lane;  // with up to four warps, every four lanes have all sums
#pragma unroll
  for (int k = 0; k < K; ++k) {
    v[k] = from < warps ? room[k * 32 + from] : R(0);
    if (warps > 4)
#pragma unroll
      for (int o = 16; o > 2; o /= 2) v[k] += __shfl_xor_sync(~0u, v[k], o);
    v[k] += __shfl_xor_sync(~0u, v[k], 2);
    v[k] += __shfl_xor_sync(~0u, v[k], 1);
  }
}

// *amax as the block's first thread sees it. Read at the start of a kernel, so that nothing waits for it.
__device__ inline uint32_t read_amax(const uint32_t* amax) {
  return amax && threadIdx.x == 0 ? *reinterpret_cast<const volatile uint32_t*>(amax) : 0;
}
// *amax = max(*amax, m of all threads), by one atomic a block; none if `seen`, an earlier *amax, is as large. Called by
// all threads of the block.
__device__ inline void block_amax(uint32_t* amax, uint32_t m, uint32_t seen) {
  __shared__ uint32_t room[32];
  if (!amax) return;
  m = __reduce_max_sync(~0u, m);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = m;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  m = __reduce_max_sync(~0u, threadIdx.x < (blockDim.x + 31) / 32 ? room[threadIdx.x] : 0u);
  if (m > 0x7f800000u) m = 0x7fffffffu;  // any NaN, whose payload does not matter
  if (threadIdx.x == 0 && m > seen) atomicMax(amax, m);
}

// total (C) += sum of the rows of partial (rows, C), in a fixed order; one such sum, or two of the same shape in one
// launch. A block has 32 columns x 16 threads, each of which sums every 16th row.
struct PartialSum {
  Tensor total;
  const float* partial;
};
template <class W>
__global__ void __launch_bounds__(512)
    add_partial_kernel(W* first, W* second, const float* of_first, const float* of_second, int rows, int64_t C) {
  __shared__ float room[16][33];
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
  const int64_t c = blockIdx.x * int64_t(32) + lane;
  const float* partial = blockIdx.y ? of_second : of_first;
  W* total = blockIdx.y ? second : first;
  in_order();
  float sum = 0;
  if (c < C) {
#pragma unroll 8
    for (int p = part; p < rows; p += 16) sum += partial[p * C + c];
  }
  room[part][lane] = sum;
  __syncthreads();
  if (part || c >= C) return;
  sum = 0;
#pragma unroll
  for (int p = 0; p < 16; ++p) sum += room[p][lane];
  total[c] = W(float(total[c]) + sum);
}
inline void add_partial(Stream& s, std::initializer_list<PartialSum> sums, int64_t rows) {
  const PartialSum &a = *sums.begin(), &b = *(sums.end() - 1);
  const int64_t C = a.total.numel();
  visit<float, bf16>(a.total.dtype, [&]<class W>() {
    launch_pdl(s, add_partial_kernel<W>, {dim3(blocks_for(C, 32), unsigned(sums.size())), 512}, a.total.ptr<W>(),
               b.total.ptr<W>(), a.partial, b.partial, int(rows), C);
  });
}

}  // namespace octet::BACKEND
