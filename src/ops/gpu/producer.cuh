#pragma once
// Producers: kernels that compute a matrix (N,C) once and write it in every form that its Operand holds, in one pass.
//
// A row is made of units; a unit computes kWays vectors of 8 columns. A thread block has a tile of 128 rows x 16 units.
// A thread holds one unit of 4 adjacent rows at a time, so that all its loads are in flight together; FP8 codes are
// transposed in registers, 4x4 bytes at once, and pass through shared memory as words of 4 rows. So both stores of
// codes are full lines: 128 bytes of q, 128 of q_t. The word of row group r and column c is at r ^ kSwizzle*(c/8) of
// the column: neither writing nor reading has bank conflicts.
//
// A producer F has:  kWays; units; place(unit), its columns; Raw, its inputs; load<kFast>(raw, n, place) for row n;
// compute(y, raw, n, place). With kWays == 2 also adjacent(): whether units 2m and 2m+1 have neighbouring columns in
// both ways, and either both exist or neither. A producer whose rows share work also has a Carry, and a thread goes
// down 8 adjacent rows:  begin(carry, n, place) before the first of them, then compute(y, raw, n, place, carry). Its
// tiles are 8 units wide, to save registers; those of three ways too, to save shared memory.
#include "ops/gpu/sink.cuh"

namespace octet::BACKEND {

template <class F>
concept Carries = requires {
  typename F::Carry;
};
template <class F>
struct CarryOf {
  using Type = struct {};
};
template <Carries F>
struct CarryOf<F> {
  using Type = typename F::Carry;
};
template <class F>
constexpr int kTileUnits = Carries<F> || F::kWays == 3 ? 8 : 16;
template <class F, class T>
consteval int tile_blocks() {  // thread blocks an SM
  if (kTileUnits<F> == 8) return 4;
  return sizeof(T) == 2 ? 3 : 2;
}

template <class F, class T, DType kFormat, bool kTranspose, bool kPairs>
__global__ void __launch_bounds__(16 * kTileUnits<F>, tile_blocks<F, T>())
    produce_kernel(const F f, const Sink<T> out) {
  constexpr int K = F::kWays, U = kTileUnits<F>,  // rows in flight: registers for the blocks that are bound above
      kBatch = !Carries<F> && (K == 2 || sizeof(typename F::Raw) > 32) ? 2 : 4;
  __shared__ TransposedTile<U> tile[kTranspose ? K : 1];
  __shared__ int columns[kTranspose ? K : 1][U];  // of each unit's vectors, or -1: place() is called once a unit
  const int tx = threadIdx.x % U, ty = threadIdx.x / U, unit = blockIdx.x * U + tx;
  const int64_t row0 = block_down() * 128;
  const auto place = unit < f.units ? f.place(unit) : decltype(f.place(unit)){};
  if constexpr (kTranspose)
    if (ty == 0)
#pragma unroll
      for (int k = 0; k < K; ++k) columns[k][tx] = place.count[k] ? place.col[k] : -1;
  in_order();
  const float scale = out.read_scale();
  uint32_t amax = 0;
  typename CarryOf<F>::Type carry;
  if constexpr (Carries<F>) f.begin(carry, min(row0 + ty * 8, out.rows - 1), place);
  constexpr bool kAhead = Carries<F> || (K == 1 && sizeof(typename F::Raw) <= 16);  // rows of both halves in flight
  constexpr int kNext = Carries<F> ? 4 : 64;  // from a thread's rows of the first half to those of the second
  typename F::Raw ahead[kAhead ? kBatch : 1];
  const uint32_t seen = kAhead ? out.read_amax() : 0;  // else read at the end, as there is no register left for it
#pragma unroll(kAhead ? 2 : 1)
  for (int half = 0; half < 2; ++half) {
    const int group = Carries<F> ? 2 * ty + half : half * 16 + ty;
    const int64_t n0 = row0 + group * 4, at0 = n0 * out.cols;
    uint2 codes[K][4] = {};
#pragma unroll
    for (int r0 = 0; r0 < 4; r0 += kBatch) {
      typename F::Raw raw[kBatch];
#pragma unroll
      for (int r = 0; r < kBatch; ++r)
        if (kAhead && half) raw[r] = ahead[r];
        else if (n0 + r0 + r < out.rows) f.template load<true>(raw[r], n0 + r0 + r, place);
      if constexpr (kAhead)
#pragma unroll
        for (int r = 0; r < kBatch; ++r)
          if (const int64_t n = n0 + kNext + r; !half && n < out.rows) f.template load<true>(ahead[r], n, place);
#pragma unroll
      for (int r = 0; r < kBatch; ++r) {
        const int64_t n = n0 + r0 + r, row = at0 + (r0 + r) * int(out.cols);
        const bool in = n < out.rows;
        float y[K][8] = {};
        if (in) {
          if constexpr (Carries<F>) f.compute(y, raw[r], n, place, carry);
          else f.compute(y, raw[r], n, place);
        }
        if constexpr (kPairs) {
          uint2 both[2];
          emit_pair<kFormat>(both, out, row, place, in && place.count[0], y, scale, amax);
          codes[0][r0 + r] = both[0], codes[1][r0 + r] = both[1];
        } else {
#pragma unroll
          for (int k = 0; k < K; ++k)
            if (in && place.count[k])
              codes[k][r0 + r] =
                  emit<kFormat, kTranspose>(out, row + place.col[k], y[k], scale, amax, K > 1 && place.kept);
        }
      }
    }
    if constexpr (kTranspose)
#pragma unroll
      for (int k = 0; k < K; ++k) tile[k].put(codes[k], tx, group);
  }
  if constexpr (kTranspose) {
    __syncthreads();
    const int lane = threadIdx.x % 16, first = threadIdx.x / 16;  // a thread's columns are U apart
    if (row0 + 8 * lane < out.rows) {
      uint8_t* to = out.q_t + row0 + 8 * lane + int64_t(first % 8) * out.rows;
#pragma unroll
      for (int k = 0; k < K; ++k)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int column = columns[k][first / 8 + U / 8 * i];
          if (column < 0) continue;
          *reinterpret_cast<uint2*>(to + int64_t(column) * out.rows) = tile[k].get(first + U * i, lane);
        }
    }
  }
  block_amax(out.amax, amax, kAhead ? seen : out.read_amax());
  out.write_scale_inv();
}

// Any size and alignment: one thread for each unit of each row.
template <class F, class T>
__global__ void __launch_bounds__(256) produce_any_kernel(const F f, const Sink<T> out) {
  constexpr int K = F::kWays;
  in_order();
  const int64_t index = blockIdx.x * int64_t(256) + threadIdx.x;
  const float scale = out.read_scale();
  const uint32_t seen = out.read_amax();
  uint32_t amax = 0;
  if (index < out.rows * f.units) {
    const int64_t n = index / f.units;
    const auto place = f.place(int(index % f.units));
    typename F::Raw raw;
    float y[K][8];
    f.template load<false>(raw, n, place);
    if constexpr (Carries<F>) {
      typename F::Carry carry;
      f.begin(carry, n, place);
      f.compute(y, raw, n, place, carry);
    } else f.compute(y, raw, n, place);
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j >= place.count[k]) continue;
        const int64_t c = place.col[k] + j;
        amax = max(amax, magnitude(y[k][j]));
        if (out.plain) out.plain[n * out.cols + c] = T(y[k][j]);
        if (!out.q && !out.q_t) continue;
        const float v = __fmul_rn(y[k][j], scale);
        const uint32_t code = out.format == DType::e4m3 ? encode1<DType::e4m3>(v) : encode1<DType::e5m2>(v);
        if (out.q) out.q[n * out.cols + c] = uint8_t(code);
        if (out.q_t) out.q_t[c * out.rows + n] = uint8_t(code);
      }
  }
  block_amax(out.amax, amax, seen);
  out.write_scale_inv();
}

// fast: f's inputs are aligned, and all its places have 0 or 8 columns.
template <class F, class T>
void produce(Stream& s, const F& f, const Sink<T>& out, bool fast) {
  if (!fast || !out.fast()) {
    launch_pdl(s, produce_any_kernel<F, T>, {blocks_for(out.rows * f.units, 256), 256}, f, out);
  } else {
    constexpr unsigned kThreads = 16 * kTileUnits<F>;
    const dim3 grid = matrix_grid(blocks_for(f.units, kTileUnits<F>), ceil_div(out.rows, 128));
    const auto launch = [&]<bool kPairs>() {
      with_bool(out.q_t, [&]<bool kTranspose>() {
        const auto kernel = out.format == DType::e5m2 ? produce_kernel<F, T, DType::e5m2, kTranspose, kPairs>
                                                      : produce_kernel<F, T, DType::e4m3, kTranspose, kPairs>;
        launch_pdl(s, kernel, {grid, kThreads}, f, out);
      });
    };
    if constexpr (F::kWays == 2) with_bool(f.adjacent() && out.takes_pairs(), launch);
    else launch.template operator()<false>();
  }
}

// ---- element-wise producers. G has:  Raw; load<kFast>(raw, offset, count); compute(y, raw).
template <class G>
struct Elementwise {
  static constexpr int kWays = 1;
  using Raw = typename G::Raw;
  G g;
  int64_t cols;
  int units;
  __device__ Place place(int unit) const { return {{unit * 8}, {int(min(int64_t(8), cols - unit * int64_t(8)))}}; }
  template <bool kFast>
  __device__ void load(Raw& raw, int64_t n, const Place& p) const {
    g.template load<kFast>(raw, n * cols + p.col[0], p.count[0]);
  }
  __device__ void compute(float (&y)[1][8], const Raw& raw, int64_t, const Place&) const { g.compute(y[0], raw); }
};

template <class G, class T, DType kFormat>
__global__ void __launch_bounds__(256) flat_kernel(const G g, const Sink<T> out, int64_t vectors) {
  const int64_t first = blockIdx.x * int64_t(1024) + threadIdx.x;
  in_order();
  const float scale = out.read_scale();
  const uint32_t seen = out.read_amax();
  typename G::Raw raw[4];
  uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i * 256 < vectors) g.template load<true>(raw[i], (first + i * 256) * 8, 8);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = (first + i * 256) * 8;
    if (first + i * 256 >= vectors) continue;
    float y[8];
    g.compute(y, raw[i]);
    emit<kFormat, false>(out, at, y, scale, amax);
  }
  block_amax(out.amax, amax, seen);
  out.write_scale_inv();
}

template <class G, class T>
void produce_elementwise(Stream& s, const G& g, const Sink<T>& out, bool inputs_aligned) {
  const int64_t n = out.rows * out.cols;
  if (!out.q_t && inputs_aligned && n % 8 == 0 && aligned({out.plain}) &&
      aligned({out.q}, 8)) {  // the shape is no matter
    const auto kernel = out.format == DType::e5m2 ? flat_kernel<G, T, DType::e5m2> : flat_kernel<G, T, DType::e4m3>;
    launch_pdl(s, kernel, {blocks_for(n, 8192), 256}, g, out, n / 8);
    return;
  }
  const Elementwise<G> f{g, out.cols, int(ceil_div(out.cols, 8))};
  produce(s, f, out, inputs_aligned);
}

}  // namespace octet::BACKEND
