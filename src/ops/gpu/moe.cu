// Mixture of experts: sorting rows by expert, gathering and combining them. Sorting takes one thread block an expert,
// which finds the places of its tokens by prefix sums, in order; gathering and combining one block a row. No atomics,
// so that results are deterministic.
#include "ops/gpu/reduce.cuh"
#include "ops/moe.h"

namespace octet::BACKEND {

namespace {

constexpr int kThreads = 256;

constexpr int kItems = 8, kSorters = 1024;  // sorting: assignments that a thread takes at a time; threads of a block

__global__ void __launch_bounds__(kSorters) count_kernel(int32_t* count, const int32_t* expert, int64_t assignments) {
  __shared__ int room[32];
  int sum[1] = {0};
  for (int64_t i = threadIdx.x; i < assignments; i += kSorters) sum[0] += expert[i] == int(blockIdx.x);
  block_sum<1>(sum, room);
  if (threadIdx.x == 0) count[blockIdx.x] = sum[0];
}

// Exclusive prefix sum over the block's threads; total: their sum. room: shared memory of 33 ints, which may be reused
// after the next barrier.
__device__ inline int block_prefix(int v, int& total, int* room) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = v;
#pragma unroll
  for (int o = 1; o < 32; o *= 2)
    if (const int other = __shfl_up_sync(~0u, sum, o); lane >= o) sum += other;
  if (lane == 31) room[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    int all = room[lane];
#pragma unroll
    for (int o = 1; o < 32; o *= 2)
      if (const int other = __shfl_up_sync(~0u, all, o); lane >= o) all += other;
    room[lane] = all;
  }
  __syncthreads();
  total = room[31];
  return sum - v + (warp ? room[warp - 1] : 0);
}

__device__ inline int padded(int rows) { return (rows + int(kExpertRows) - 1) / int(kExpertRows) * int(kExpertRows); }

struct Sort {
  int32_t *offset, *count, *row, *source;
  int64_t assignments, R;
  int E;
};
__global__ void __launch_bounds__(kSorters) sort_kernel(const Sort m, const int32_t* expert) {
  __shared__ int room[33];
  const int e = blockIdx.x;
  int first = 0, total = 0;  // every block reads all counts, so that none waits for another
  {
    int mine = 0;
    for (int i = threadIdx.x; i < e; i += kSorters) mine += padded(m.count[i]);
    block_prefix(mine, first, room);
    __syncthreads();
  }
  const int count = m.count[e], behind = first + padded(count);
  if (threadIdx.x == 0) {
    m.offset[e] = first;
    if (e + 1 == m.E) m.offset[m.E] = behind;
  }
  int next = first;
  for (int64_t base = 0; base < m.assignments; base += kSorters * kItems) {
    const int64_t begin = base + threadIdx.x * kItems;
    uint32_t hits = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) hits |= uint32_t(begin + i < m.assignments && expert[begin + i] == e) << i;
    int at = next + block_prefix(__popc(hits), total, room);
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      if (hits >> i & 1) {
        m.row[begin + i] = at;
        m.source[at++] = int32_t(begin + i);
      }
    next += total;
    __syncthreads();  // before `room` is reused
  }
  const int64_t end = e + 1 == m.E ? m.R : behind;  // the last expert's block also marks the unused rows
  for (int64_t r = first + count + int(threadIdx.x); r < end; r += kSorters) m.source[r] = -1;
}

// ---- rows to experts and back
template <class V>  // a vector of 16 bytes, or an element
__global__ void __launch_bounds__(kThreads) gather_kernel(V* y, const V* x, const int32_t* source, int columns, int K) {
  const int64_t r = blockIdx.x;
  const int from = source[r];
  for (int c = threadIdx.x; c < columns; c += kThreads)
    y[r * columns + c] = from < 0 ? V{} : x[int64_t(from / K) * columns + c];
}

template <class T>
struct Combine {
  T* y;
  const T *o, *residual;
  const int32_t* row;
  const float* weight;
  int C, K;
};
template <class T, bool kFast>
__global__ void __launch_bounds__(kThreads) combine_kernel(const Combine<T> m) {
  const int64_t n = blockIdx.x;
  for (int c = threadIdx.x * 8; c < m.C; c += kThreads * 8) {
    const int count = min(8, m.C - c);
    float sum[8] = {};
    for (int k = 0; k < m.K; ++k) {
      const float w = m.weight ? m.weight[n * m.K + k] : 1.f;
      float v[8];
      unpack(v, load<kFast>(m.o + int64_t(m.row[n * m.K + k]) * m.C + c, count));
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += w * v[j];
    }
    if (m.residual) {
      float v[8];
      unpack(v, load<kFast>(m.residual + n * m.C + c, count));
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += v[j];
    }
    store<kFast>(m.y + n * m.C + c, sum, count);
  }
}

template <class T>
struct CombineBackward {
  T* d_o;
  float* dweight;
  const T *dy, *o;
  const float* weight;
  const int32_t* source;
  int C, K;
};
template <class T, bool kFast>
__global__ void __launch_bounds__(kThreads) combine_backward_kernel(const CombineBackward<T> m) {
  __shared__ float room[32];
  const int64_t r = blockIdx.x;
  const int from = m.source[r];
  const int64_t n = from / m.K;
  const float w = from < 0 ? 0 : m.weight[from];
  float dot[1] = {0};
  for (int c = threadIdx.x * 8; c < m.C; c += kThreads * 8) {
    const int count = min(8, m.C - c);
    float d[8] = {}, v[8];
    if (from >= 0) {
      unpack(d, load<kFast>(m.dy + n * m.C + c, count));
      unpack(v, load<kFast>(m.o + r * m.C + c, count));
#pragma unroll
      for (int j = 0; j < 8; ++j) dot[0] += d[j] * v[j], d[j] *= w;
    }
    store<kFast>(m.d_o + r * m.C + c, d, count);
  }
  if (from < 0) return;  // the same for the whole block
  block_sum<1>(dot, room);
  if (threadIdx.x == 0) m.dweight[from] = dot[0];
}

}  // namespace

void moe_sort(Stream& s, const MoeRows& m, Tensor expert) {
  const Timed timed(s, Kernel::elementwise);
  const int64_t assignments = expert.numel(), E = m.count.numel(), R = m.source.numel();
  CHECK(m.offset.numel() == E + 1 && m.row.numel() == assignments && R < (int64_t{1} << 31) &&
            R >= expert_rows(expert.rows(), E, expert.cols()),
        R, " rows for ", assignments, " assignments");
  const Sort sort{m.offset.ptr<int32_t>(),
                  m.count.ptr<int32_t>(),
                  m.row.ptr<int32_t>(),
                  m.source.ptr<int32_t>(),
                  assignments,
                  R,
                  int(E)};
  count_kernel<<<unsigned(E), kSorters, 0, raw(s)>>>(sort.count, expert.ptr<int32_t>(), assignments);
  CUDA_CHECK(cudaGetLastError());
  sort_kernel<<<unsigned(E), kSorters, 0, raw(s)>>>(sort, expert.ptr<int32_t>());
  CUDA_CHECK(cudaGetLastError());
}

std::vector<int64_t> moe_offsets(Stream& s, int32_t* pinned, Tensor offset, int64_t) {
  copy_to_host(s, pinned, offset.data, offset.bytes());
  s.synchronize();
  return {pinned, pinned + offset.numel()};
}

void moe_fetch_offsets(Stream& s, int32_t* pinned, Tensor offset, int64_t) {
  copy_to_host(s, pinned, offset.data, offset.bytes());
}

void moe_gather(Stream& s, Tensor y, Tensor x, Tensor source, int64_t K) {
  const Timed timed(s, Kernel::elementwise);
  const int64_t R = y.rows(), C = y.cols(), bytes = C * int64_t(size_of(y.dtype));
  CHECK(source.numel() == R && x.cols() == C && x.dtype == y.dtype, y.shape, " of ", x.shape);
  const auto launch = [&]<class V>() {
    gather_kernel<<<unsigned(R), kThreads, 0, raw(s)>>>(static_cast<V*>(y.data), static_cast<const V*>(x.data),
                                                        source.ptr<int32_t>(), int(bytes / int64_t(sizeof(V))), int(K));
  };
  if (bytes % 16 == 0 && aligned({y.data, x.data})) launch.template operator()<uint4>();
  else if (size_of(y.dtype) == 4) launch.template operator()<uint32_t>();
  else launch.template operator()<uint16_t>();
  CUDA_CHECK(cudaGetLastError());
}

void moe_combine(Stream& s, Tensor y, Tensor o, Tensor row, Tensor weight, Tensor residual) {
  const Timed timed(s, Kernel::elementwise);
  const int64_t N = y.rows(), C = y.cols(), K = row.cols();
  CHECK(row.rows() == N && o.cols() == C && (!weight || weight.numel() == N * K) &&
            (!residual || residual.numel() == N * C),
        y.shape, " of ", o.shape);
  visit<float, bf16>(y.dtype, [&]<class T>() {
    const Combine<T> m{.y = y.ptr<T>(),
                       .o = o.ptr<T>(),
                       .residual = residual ? residual.ptr<T>() : nullptr,
                       .row = row.ptr<int32_t>(),
                       .weight = weight ? weight.ptr<float>() : nullptr,
                       .C = int(C),
                       .K = int(K)};
    with_bool(C % 8 == 0 && aligned({m.y, m.o, m.residual}),
              [&]<bool kFast>() { combine_kernel<T, kFast><<<unsigned(N), kThreads, 0, raw(s)>>>(m); });
  });
  CUDA_CHECK(cudaGetLastError());
}

void moe_combine_backward(Stream& s, const MoeCombineBackward& g) {
  const Timed timed(s, Kernel::elementwise);
  const int64_t R = g.d_o.rows(), C = g.d_o.cols();
  CHECK(g.source.numel() == R && g.o.rows() == R && g.o.cols() == C && g.dy.cols() == C, g.d_o.shape, " of ",
        g.dy.shape);
  visit<float, bf16>(g.dy.dtype, [&]<class T>() {
    const CombineBackward<T> m{.d_o = g.d_o.ptr<T>(),
                               .dweight = g.dweight.ptr<float>(),
                               .dy = g.dy.ptr<T>(),
                               .o = g.o.ptr<T>(),
                               .weight = g.weight.ptr<float>(),
                               .source = g.source.ptr<int32_t>(),
                               .C = int(C),
                               .K = int(g.weight.cols())};
    with_bool(C % 8 == 0 && aligned({m.d_o, m.dy, m.o}),
              [&]<bool kFast>() { combine_backward_kernel<T, kFast><<<unsigned(R), kThreads, 0, raw(s)>>>(m); });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace octet::BACKEND
