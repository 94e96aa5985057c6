// Quantisation of a plain matrix into the forms of an operand; transposition of FP8 codes.
#include "ops/gpu/producer.cuh"

namespace octet::BACKEND {

namespace {

template <class T>
struct Identity {
  using Raw = Pack<T>;
  const T* x;
  template <bool kFast>
  __device__ void load(Raw& raw, int64_t at, int count) const {
    raw = BACKEND::load<kFast>(x + at, count);
  }
  __device__ void compute(float (&y)[8], const Raw& raw) const { unpack(y, raw); }
};

// Both halves of a tile are loaded before either is transposed: 64 bytes a thread in flight.
__global__ void __launch_bounds__(256) transpose_kernel(uint8_t* y, const uint8_t* x, int64_t N, int64_t C) {
  __shared__ TransposedTile<> tile;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int64_t row0 = block_down() * 128, col0 = blockIdx.x * int64_t(128), c = col0 + tx * 8;
  uint2 codes[2][4] = {};
  in_order();
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t n = row0 + (half * 16 + ty) * 4 + r;
      if (n < N && c < C) codes[half][r] = *reinterpret_cast<const uint2*>(x + n * C + c);
    }
#pragma unroll
  for (int half = 0; half < 2; ++half) tile.put(codes[half], tx, half * 16 + ty);
  __syncthreads();
  if (row0 + 8 * tx >= N) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int column = ty + 16 * i;
    if (col0 + column < C) *reinterpret_cast<uint2*>(y + (col0 + column) * N + row0 + 8 * tx) = tile.get(column, tx);
  }
}
__global__ void transpose_any_kernel(uint8_t* y, const uint8_t* x, int64_t N, int64_t C) {
  __shared__ uint8_t tile[32][33];
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  const int64_t n0 = block_down() * 32, c0 = blockIdx.x * int64_t(32);
  in_order();
  for (int r = row; r < 32; r += 8)
    if (n0 + r < N && c0 + lane < C) tile[r][lane] = x[(n0 + r) * C + c0 + lane];
  __syncthreads();
  for (int r = row; r < 32; r += 8)
    if (c0 + r < C && n0 + lane < N) y[(c0 + r) * N + n0 + lane] = tile[lane][r];
}

}  // namespace

void quantize(Stream& s, Operand y, Tensor x) {
  const Timed timed(s, Kernel::quantize);
  visit<float, bf16>(x.dtype, [&]<class T>() {
    produce_elementwise(s, Identity<T>{x.ptr<T>()}, Sink<T>(y, x.rows(), x.cols()), aligned({x.data}));
  });
}

void transpose(Stream& s, Tensor y, Tensor x) {
  const Timed timed(s, Kernel::quantize);
  const int64_t N = x.rows(), C = x.cols();
  CHECK(size_of(x.dtype) == 1 && size_of(y.dtype) == 1 && y.numel() == x.numel() && y.cols() == N, y.shape, " from ",
        x.shape);
  if (x.numel() == 0) return;
  auto* to = static_cast<uint8_t*>(y.data);
  const auto* from = static_cast<const uint8_t*>(x.data);
  const bool fast = N % 8 == 0 && C % 8 == 0 && aligned({to, from}, 8);
  const int64_t side = fast ? 128 : 32;
  const dim3 grid = matrix_grid(blocks_for(C, side), ceil_div(N, side));
  launch_pdl(s, fast ? transpose_kernel : transpose_any_kernel, {grid, 256}, to, from, N, C);
}

}  // namespace octet::BACKEND
