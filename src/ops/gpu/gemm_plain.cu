// d (M,N) = a b^T [+ d or residual], a (M,K), b (N,K), either of them possibly stored transposed: tiles of 16 x 16 in
// shared memory, one thread for each element of d.
#include "ops/gpu/gemm_plain.h"
#include "ops/gpu/vector.cuh"

namespace octet::BACKEND {

namespace {

constexpr int kTile = 16;

template <class T>
struct Matrix {  // (rows, K), or stored as (K, rows)
  const T* x;
  int64_t rows;
  bool transposed;
};
template <class T, class D>
struct Plain {
  Matrix<T> a, b;
  D* d;
  const D* addend;  // or null
  int64_t K;
};

// tile[row][column] = m at row r0 + row, column k0 + column; zero outside. Neighbouring threads
// read neighbouring addresses.
template <class T>
__device__ inline void load_tile(float (&tile)[kTile][kTile + 1], const Matrix<T>& m, int64_t r0, int64_t k0,
                                 int64_t K) {
  const int fast = threadIdx.x % kTile, slow = threadIdx.x / kTile;
  const int row = m.transposed ? fast : slow, column = m.transposed ? slow : fast;
  const int64_t r = r0 + row, k = k0 + column;
  float v = 0;
  if (r < m.rows && k < K) v = float(m.x[m.transposed ? k * m.rows + r : r * K + k]);
  tile[row][column] = v;
}

template <class T, class D>
__global__ void __launch_bounds__(kTile* kTile) plain_kernel(const Plain<T, D> p) {
  __shared__ float a[kTile][kTile + 1], b[kTile][kTile + 1];
  const int column = threadIdx.x % kTile, row = threadIdx.x / kTile;
  const int64_t m0 = int64_t(blockIdx.x) * kTile, n0 = block_down() * kTile;
  float sum = 0;
  for (int64_t k0 = 0; k0 < p.K; k0 += kTile) {
    load_tile(a, p.a, m0, k0, p.K);
    load_tile(b, p.b, n0, k0, p.K);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTile; ++k) sum += a[row][k] * b[column][k];
    __syncthreads();
  }
  const int64_t m = m0 + row, n = n0 + column, N = p.b.rows;
  if (m >= p.a.rows || n >= N) return;
  if (p.addend) sum += float(p.addend[m * N + n]);
  p.d[m * N + n] = D(sum);
}

}  // namespace

void plain_product(Stream& s, const GemmArgs& g, Tensor residual) {
  const int64_t M = g.d.rows(), N = g.d.cols();
  const Tensor addend = residual ? residual : g.adds() ? g.d : Tensor{};
  visit<float, bf16>(g.a.t.dtype, [&]<class T>() {
    visit<float, bf16>(g.d.dtype, [&]<class D>() {
      const Plain<T, D> p{.a = {g.a.t.ptr<T>(), M, g.a.transposed},
                          .b = {g.b.t.ptr<T>(), N, g.b.transposed},
                          .d = g.d.ptr<D>(),
                          .addend = addend ? addend.ptr<D>() : nullptr,
                          .K = g.a.contracted()};
      plain_kernel<<<matrix_grid(ceil_div(M, kTile), ceil_div(N, kTile)), kTile * kTile, 0, raw(s)>>>(p);
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace octet::BACKEND
