// Sums in a fixed order.
#include "ops/gpu/reduce.cuh"
#include "ops/workspace.h"

namespace octet::BACKEND {

namespace {

template <class T>
__global__ void __launch_bounds__(1024) sum_kernel(double* total, const T* x, int64_t n) {
  __shared__ double room[32];
  double sum[1] = {};
  for (int64_t i = threadIdx.x; i < n; i += 1024) sum[0] += double(float(x[i]));
  block_sum(sum, room);
  if (threadIdx.x == 0) *total += sum[0];
}

// A warp sums every (8 gridDim.y)-th row of 256 columns; the sums of the block's warps are added in order.
template <class T, bool kFast>
__global__ void __launch_bounds__(256, sizeof(T) == 2 ? 4 : 2)
    column_sum_kernel(float* partial, const T* x, int64_t N, int64_t C) {
  __shared__ float room[8][256];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t c = blockIdx.x * int64_t(256) + lane * 8, step = gridDim.y * int64_t(8);
  const int count = int(max(int64_t(0), min(int64_t(8), C - c)));
  in_order();
  float sum[8] = {};
#pragma unroll 1
  for (int64_t n0 = blockIdx.y * int64_t(8) + warp; n0 < N; n0 += 8 * step) {
    Pack<T> rows[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int64_t n = n0 + k * step;
      const T* from = x + n * C + c;
      if constexpr (kFast) rows[k] = n < N && count ? load_once(from) : Pack<T>{};
      else rows[k] = load<false>(from, n < N ? count : 0);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      float v[8];
      unpack(v, rows[k]);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += v[j];
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) room[warp][j * 32 + lane] = sum[j];
  __syncthreads();
  const int64_t at = blockIdx.x * int64_t(256) + lane * 8 + warp;
  if (at >= C) return;
  float total = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) total += room[k][warp * 32 + lane];
  partial[blockIdx.y * C + at] = total;
}

template <class T>
__global__ void __launch_bounds__(512) squares_kernel(double* partial, const T* x, int64_t n, bool fast) {
  __shared__ double room[32];
  const int64_t vectors = (n + 7) / 8, step = gridDim.x * int64_t(512);
  in_order();
  double sum[1] = {};
#pragma unroll 1
  for (int64_t v0 = blockIdx.x * int64_t(512) + threadIdx.x; v0 < vectors; v0 += 4 * step) {
    Pack<T> part[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t v = v0 + k * step, left = n - v * 8;
      if (fast && left >= 8) part[k] = load8(x + v * 8);
      else part[k] = load<false>(x + v * 8, int(max(int64_t(0), min(int64_t(8), left))));
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float values[8];
      unpack(values, part[k]);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[0] += double(values[j]) * double(values[j]);
    }
  }
  block_sum(sum, room);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum[0];
}
__global__ void __launch_bounds__(256) add_sums_kernel(double* total, const double* partial, int count) {
  __shared__ double room[32];
  in_order();
  double sum[1] = {};
  for (int i = threadIdx.x; i < count; i += 256) sum[0] += partial[i];
  block_sum(sum, room);
  if (threadIdx.x == 0) *total += sum[0];
}

}  // namespace

void sum(Stream& s, Tensor total, Tensor x) {
  const Timed timed(s, Kernel::elementwise);
  visit<float, bf16>(
      x.dtype, [&]<class T>() { sum_kernel<T><<<1, 1024, 0, raw(s)>>>(total.ptr<double>(), x.ptr<T>(), x.numel()); });
  CUDA_CHECK(cudaGetLastError());
}

void column_sum(Stream& s, Tensor total, Tensor x, Tensor partial) {
  const Timed timed(s, Kernel::elementwise);
  const int64_t N = x.rows(), C = x.cols(), P = partial_rows(s.target());
  CHECK(total.numel() == C && partial.numel() >= P * C, total.shape, " += columns of ", x.shape);
  if (N == 0) return;
  const unsigned columns = blocks_for(C, 256);
  // Eight loads of a warp are in flight at once. At most eight blocks an SM, as each leaves a row of partial sums. They
  // are about two waves: a single one would spread unevenly where it begins before the kernel ahead of it has ended.
  const int64_t rows = std::min({P, ceil_div(N, 64), ceil_div(4 * P, columns)});
  const dim3 grid(columns, unsigned(rows));
  visit<float, bf16>(x.dtype, [&]<class T>() {
    with_bool(C % 8 == 0 && aligned({x.data}), [&]<bool kFast>() {
      launch_pdl(s, column_sum_kernel<T, kFast>, {grid, 256}, partial.ptr<float>(), x.ptr<T>(), N, C);
    });
  });
  add_partial(s, {{total, partial.ptr<float>()}}, rows);
}

void sum_of_squares(Stream& s, Tensor total, Tensor x, Tensor partial) {
  const Timed timed(s, Kernel::optimizer);
  const int64_t P = partial_sums(s.target());
  CHECK(partial.numel() >= P, "partial ", partial.shape, " of ", P);
  if (x.numel() == 0) return;
  visit<float, bf16>(x.dtype, [&]<class T>() {
    launch_pdl(s, squares_kernel<T>, {unsigned(P), 512}, partial.ptr<double>(), x.ptr<T>(), x.numel(),
               aligned({x.data}));
  });
  launch_pdl(s, add_sums_kernel, {1, 256}, total.ptr<double>(), partial.ptr<double>(), int(P));
}

}  // namespace octet::BACKEND
