// Token embedding: forward copies rows, backward sums rows by token. `order` lists the rows sorted by token, so that
// equal tokens form a run. A warp sums a run of up to 32 rows, 768 or 1024 columns at a time, so that finding the run
// costs little beside moving it; a longer run is shared by the warps of the block, which take 32 rows each in turn, and
// their sums are added in order. Either way the order of summation is fixed.
#include <algorithm>

#include "ops/gpu/reduce.cuh"

namespace octet::BACKEND {

namespace {

constexpr int kWarps = 8;
constexpr int kSlab = 256;  // columns that a warp takes at once, 8 a lane; a block has 3 or 4 such slabs

__global__ void __launch_bounds__(256)
    forward_kernel(uint4* y, const int32_t* tokens, const uint4* w, int64_t vectors) {
  const int64_t n = blockIdx.x, token = tokens[n];
  const int64_t step = int64_t(blockDim.x);
  int64_t v = threadIdx.x;
  for (; v + 3 * step < vectors; v += 4 * step) {
    uint4 r[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) r[k] = w[token * vectors + v + k * step];
#pragma unroll
    for (int k = 0; k < 4; ++k) y[n * vectors + v + k * step] = r[k];
  }
  for (; v < vectors; v += step) y[n * vectors + v] = w[token * vectors + v];
}
template <class T>
__global__ void __launch_bounds__(256) forward_any_kernel(T* y, const int32_t* tokens, const T* w, int64_t C) {
  const int64_t n = blockIdx.x, token = tokens[n];
  for (int64_t c = threadIdx.x; c < C; c += 256) y[n * C + c] = w[token * C + c];
}

template <class T>
struct Run {
  const T* dy;
  const int32_t *tokens, *order;
  int64_t N, C;
};

// Adds the rows of `token` among positions base .. base+31 to sum, in order; returns how many there were.
template <bool kFast, class T>
__device__ int add_rows(float (&sum)[8], const Run<T>& run, int64_t base, int token, int64_t c, int count) {
  const int lane = threadIdx.x % 32;
  const int row = base + lane < run.N ? run.order[base + lane] : -1;
  const unsigned same = __ballot_sync(~0u, row >= 0 && run.tokens[max(row, 0)] == token);
  const int rows = __popc(same);  // sorted: the set lanes are the first
#pragma unroll 1
  for (int r0 = 0; r0 < rows; r0 += 8) {
    Pack<T> part[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const int64_t n = __shfl_sync(~0u, row, (r0 + r) % 32);
      part[r] = load<kFast>(run.dy + max(n, int64_t(0)) * run.C + c, r0 + r < rows ? count : 0);
    }
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      if (r0 + r >= rows) break;
      float v[8];
      unpack(v, part[r]);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += v[j];
    }
  }
  return rows;
}

// Adds the first `rows` rows of the run to dw's row; lane r holds the number of the r-th row. Two rows, all slabs of
// them, are in flight at a time.
template <int kSlabs, bool kFast, class T, class W>
__device__ void add_short_run(W* dw, const Run<T>& run, unsigned rows, int row, int64_t c0) {
  Pack<W> before[kSlabs];
  float sum[kSlabs][8] = {};
  int count[kSlabs];
#pragma unroll
  for (int k = 0; k < kSlabs; ++k) {
    count[k] = int(max(int64_t(0), min(int64_t(8), run.C - c0 - k * kSlab)));
    before[k] = load<kFast>(dw + c0 + k * kSlab, count[k]);
  }
#pragma unroll 1
  for (unsigned r0 = 0; r0 < rows; r0 += 2) {
    Pack<T> part[2][kSlabs];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const T* from = run.dy + __shfl_sync(~0u, row, int(r0 + r) % 32) * run.C + c0;
#pragma unroll
      for (int k = 0; k < kSlabs; ++k) part[r][k] = load<kFast>(from + k * kSlab, r0 + r < rows ? count[k] : 0);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int k = 0; k < kSlabs; ++k) {
        if (r0 + r >= rows) break;
        float v[8];
        unpack(v, part[r][k]);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[k][j] += v[j];
      }
  }
#pragma unroll
  for (int k = 0; k < kSlabs; ++k) {
    float total[8];
    unpack(total, before[k]);
#pragma unroll
    for (int j = 0; j < 8; ++j) total[j] += sum[k][j];
    store<kFast>(dw + c0 + k * kSlab, total, count[k]);
  }
}

// Adds the run that starts at `first` to dw's row, by all warps of the block.
template <int kSlabs, bool kFast, class T, class W>
__device__ void add_long_run(W* dw, const Run<T>& run, int64_t first, int token) {
  __shared__ float room[kWarps][kSlab];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t c0 = blockIdx.y * int64_t(kSlabs * kSlab), k = 0; k < kSlabs && c0 < run.C; ++k, c0 += kSlab) {
    const int64_t c = c0 + lane * 8, at = c + warp;  // this thread's column: j == warp
    const int count = int(max(int64_t(0), min(int64_t(8), run.C - c)));
    float sum[8] = {};
    for (int64_t base = first + warp * 32; add_rows<kFast>(sum, run, base, token, c, count) == 32;) base += kWarps * 32;
#pragma unroll
    for (int j = 0; j < 8; ++j) room[warp][j * 32 + lane] = sum[j];
    __syncthreads();
    if (at < run.C) {
      float total = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total += room[w][warp * 32 + lane];
      dw[at] = W(float(dw[at]) + total);
    }
    __syncthreads();
  }
}

template <int kSlabs, class T, class W, bool kFast>
__global__ void __launch_bounds__(256, kSlabs == 3 ? 3 : 2) backward_kernel(W* dw, const Run<T> run) {
  __shared__ int long_token[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = blockIdx.x * int64_t(kWarps), p = first + warp, last = run.N - 1;
  // Two rounds of dependent loads find the run.
  const int row = run.order[min(p + lane, last)];
  const int previous = run.order[max(min(p, last) - 1, int64_t(0))], behind = run.order[min(p + 32, last)];
  const int mine = run.tokens[row], token = __shfl_sync(~0u, mine, 0);
  const bool starts = p <= last && (p == 0 || run.tokens[previous] != token);
  const bool is_long = starts && p + 32 <= last && run.tokens[behind] == token;
  if (lane == 0) long_token[warp] = is_long ? token : -1;
  if (starts && !is_long) {
    const unsigned same = __ballot_sync(~0u, p + lane <= last && mine == token);  // sorted: the first lanes
    const int64_t c = blockIdx.y * int64_t(kSlabs * kSlab) + lane * 8;
    add_short_run<kSlabs, kFast>(dw + token * run.C, run, unsigned(__popc(same)), row, c);
  }
  __syncthreads();
  for (int w = 0; w < kWarps; ++w)
    if (long_token[w] >= 0) add_long_run<kSlabs, kFast>(dw + long_token[w] * run.C, run, first + w, long_token[w]);
}

}  // namespace

void embedding_forward(Stream& s, Tensor y, Tensor tokens, Tensor w) {
  const Timed timed(s, Kernel::embedding);
  const int64_t N = y.rows(), C = y.cols(), bytes = C * int64_t(size_of(y.dtype));
  CHECK(tokens.numel() == N && w.cols() == C && w.dtype == y.dtype, y.shape, " from ", w.shape);
  if (N == 0) return;
  if (bytes % 16 == 0 && aligned({y.data, w.data})) {
    const unsigned threads = unsigned(std::clamp<int64_t>(ceil_div(bytes / 16, 128) * 32, 32, 256));
    forward_kernel<<<unsigned(N), threads, 0, raw(s)>>>(static_cast<uint4*>(y.data), tokens.ptr<int32_t>(),
                                                        static_cast<const uint4*>(w.data), bytes / 16);
  } else {
    visit<float, bf16>(y.dtype, [&]<class T>() {
      forward_any_kernel<T><<<unsigned(N), 256, 0, raw(s)>>>(y.ptr<T>(), tokens.ptr<int32_t>(), w.ptr<T>(), C);
    });
  }
  CUDA_CHECK(cudaGetLastError());
}

void embedding_backward(Stream& s, Tensor dw, Tensor dy, Tensor tokens, Tensor order) {
  const Timed timed(s, Kernel::embedding);
  const int64_t N = dy.rows(), C = dy.cols();
  CHECK(tokens.numel() == N && order.numel() == N && dw.cols() == C, dw.shape, " += ", dy.shape);
  if (N == 0) return;
  visit<float, bf16>(dy.dtype, [&]<class T>() {
    visit<float, bf16>(dw.dtype, [&]<class W>() {
      with_bool(C % 8 == 0 && aligned({dw.data, dy.data}), [&]<bool kFast>() {
        const Run<T> run{dy.ptr<T>(), tokens.ptr<int32_t>(), order.ptr<int32_t>(), N, C};
        with_bool(C <= 3 * kSlab, [&]<bool kNarrow>() {  // of 4 slabs one would be idle
          constexpr int kSlabs = kNarrow ? 3 : 4;
          const dim3 grid(blocks_for(N, kWarps), blocks_for(C, kSlab * kSlabs));
          backward_kernel<kSlabs, T, W, kFast><<<grid, 256, 0, raw(s)>>>(dw.ptr<W>(), run);
        });
      });
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace octet::BACKEND
