// Token embedding: a copy of rows, and their sums by token. `order` holds the rows sorted by token, so equal tokens are
// a run. A warp adds a run of up to 32 rows, 256 columns of it; a longer one is shared by the warps of the block, 32
// rows each in turn, their sums added in order. Either way the order of the sum is fixed.
#include <algorithm>

#include "ops/gpu/reduce.cuh"

namespace octet::BACKEND {

namespace {

constexpr int kWarps = 8, kSlab = 256;  // columns of a warp, 8 a lane

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

template <class T, class W, bool kFast>
__global__ void __launch_bounds__(256) backward_kernel(W* dw, const Run<T> run) {
  __shared__ float room[kWarps][kSlab];
  __shared__ int long_token[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t c = blockIdx.y * int64_t(kSlab) + lane * 8, first = blockIdx.x * int64_t(kWarps), p = first + warp;
  const int count = int(max(int64_t(0), min(int64_t(8), run.C - c)));
  int token = -1;
  bool is_long = false;
  if (p < run.N) {
    token = run.tokens[run.order[p]];
    if (p > 0 && run.tokens[run.order[p - 1]] == token) token = -1;  // another warp's run
    else is_long = p + 32 < run.N && run.tokens[run.order[p + 32]] == token;
  }
  if (lane == 0) long_token[warp] = is_long ? token : -1;
  if (token >= 0 && !is_long) {
    W* to = dw + token * run.C + c;
    const Pack<W> before = load<kFast>(to, count);
    float sum[8] = {}, total[8];
    add_rows<kFast>(sum, run, p, token, c, count);
    unpack(total, before);
#pragma unroll
    for (int j = 0; j < 8; ++j) total[j] += sum[j];
    store<kFast>(to, total, count);
  }
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    token = long_token[w];
    if (token < 0) continue;
    float sum[8] = {};
    for (int64_t base = first + w + warp * 32; add_rows<kFast>(sum, run, base, token, c, count) == 32;)
      base += kWarps * 32;
#pragma unroll
    for (int j = 0; j < 8; ++j) room[warp][j * 32 + lane] = sum[j];
    __syncthreads();
    const int64_t at = blockIdx.y * int64_t(kSlab) + lane * 8 + warp;  // this thread's column: j == warp
    if (at < run.C) {
      float total = 0;
#pragma unroll
      for (int k = 0; k < kWarps; ++k) total += room[k][warp * 32 + lane];
      dw[token * run.C + at] = W(float(dw[token * run.C + at]) + total);
    }
    __syncthreads();
  }
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
  const dim3 grid(blocks_for(N, kWarps), blocks_for(C, kSlab));
  visit<float, bf16>(dy.dtype, [&]<class T>() {
    visit<float, bf16>(dw.dtype, [&]<class W>() {
      with_bool(C % 8 == 0 && aligned({dw.data, dy.data}), [&]<bool kFast>() {
        const Run<T> run{dy.ptr<T>(), tokens.ptr<int32_t>(), order.ptr<int32_t>(), N, C};
        backward_kernel<T, W, kFast><<<grid, 256, 0, raw(s)>>>(dw.ptr<W>(), run);
      });
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace octet::BACKEND
