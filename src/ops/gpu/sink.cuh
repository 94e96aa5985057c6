#pragma once
// Where a producer's values go: the forms of an Operand, and the tile in shared memory that transposes FP8 codes.
#include "ops/gpu/reduce.cuh"

namespace octet::BACKEND {

struct Place {               // the columns of a unit
  int col[2]{}, count[2]{};  // of each of its vectors
  int i = -1;                // rope_backward: index of the first pair; -1: not rotated
  bool kept = false;         // the plain form holds these values already
};

template <class T>
struct Sink {
  T* plain = nullptr;
  uint8_t *q = nullptr, *q_t = nullptr;
  float* scale_inv = nullptr;
  const float* scale = nullptr;
  uint32_t* amax = nullptr;
  DType format = DType::e4m3;
  int64_t rows = 0, cols = 0;

  Sink(const Operand& y, int64_t n, int64_t c)
      : q(static_cast<uint8_t*>(y.q.data)),
        q_t(static_cast<uint8_t*>(y.q_t.data)),
        scale_inv(y.scale_inv),
        scale(y.slot.scale),
        amax(y.slot.amax),
        format(y.slot.format),
        rows(n),
        cols(c) {
    for (const Tensor& t : {y.plain, y.q}) CHECK(!t || (t.rows() == n && t.cols() == c), t.shape, " for ", n, " x ", c);
    CHECK(!y.q_t || (y.q_t.rows() == c && y.q_t.cols() == n), y.q_t.shape, " for ", c, " x ", n);
    CHECK((!y.q && !y.q_t) || (y.slot.scale && is_fp8(y.slot.format)), "an FP8 form without a scale");
    for (const Tensor& t : {y.q, y.q_t}) CHECK(!t || t.dtype == y.slot.format, name_of(t.dtype));
    if (y.plain) plain = y.plain.ptr<T>();
  }
  bool fast() const {  // vectors of 8 may be stored
    return cols % 8 == 0 && (!q_t || rows % 8 == 0) && aligned({plain}) && aligned({q, q_t}, 8);
  }
  bool takes_pairs() const { return cols % 16 == 0 && aligned({q}); }
  __device__ void write_scale_inv() const {  // by the first thread of the grid
    if (scale_inv && scale && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *scale_inv = __frcp_rn(*scale);
  }
  __device__ float read_scale() const { return scale ? *scale : 1.f; }
  __device__ uint32_t read_amax() const { return BACKEND::read_amax(amax); }
};

__device__ inline uint32_t magnitude8(const float (&v)[8]) {
  float m = fabsf(v[0]);
#pragma unroll
  for (int j = 1; j < 8; ++j) m = max_nan(m, fabsf(v[j]));
  return __float_as_uint(m);
}

// Transposes four rows of 8 codes into eight words, one for each column, of four rows each.
__device__ inline void transpose_codes(uint32_t (&w)[8], const uint2 (&rows)[4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t a = h ? rows[0].y : rows[0].x, b = h ? rows[1].y : rows[1].x;
    const uint32_t c = h ? rows[2].y : rows[2].x, d = h ? rows[3].y : rows[3].x;
    const uint32_t ab0 = __byte_perm(a, b, 0x5140), ab1 = __byte_perm(a, b, 0x7362);
    const uint32_t cd0 = __byte_perm(c, d, 0x5140), cd1 = __byte_perm(c, d, 0x7362);
    w[4 * h] = __byte_perm(ab0, cd0, 0x5410), w[4 * h + 1] = __byte_perm(ab0, cd0, 0x7632);
    w[4 * h + 2] = __byte_perm(ab1, cd1, 0x5410), w[4 * h + 3] = __byte_perm(ab1, cd1, 0x7632);
  }
}
template <int kUnits = 16>
struct TransposedTile {  // 8 * kUnits columns x 32 groups of 4 rows
  static constexpr int kSwizzle = 32 / kUnits;
  alignas(16) uint32_t word[8 * kUnits * 32];
  __device__ void put(const uint2 (&rows)[4], int unit, int group) {
    uint32_t w[8];
    transpose_codes(w, rows);
#pragma unroll
    for (int j = 0; j < 8; ++j) word[(unit * 8 + j) * 32 + (group ^ (kSwizzle * unit))] = w[j];
  }
  __device__ uint2 get(int column, int lane) const {  // rows 8*lane .. 8*lane+7
    return reinterpret_cast<const uint2*>(word)[column * 16 + (lane ^ (kSwizzle / 2 * (column / 8)))];
  }
};

// Writes eight values in the row-wise forms; returns their codes, if there are FP8 forms. kept: the plain form holds
// them already.
template <DType kFormat, bool kTranspose, class T>
__device__ inline uint2 emit(const Sink<T>& out, int64_t at, const float (&y)[8], float scale, uint32_t& amax,
                             bool kept = false) {
  const uint32_t m = magnitude8(y);
  amax = max(amax, m);
  if (out.plain && !kept) store8(out.plain + at, pack<T>(y));
  if (!kTranspose && !out.q) return {};
  const uint2 codes = encode8<kFormat>(y, scale, m);
  if (out.q) *reinterpret_cast<uint2*>(out.q + at) = codes;
  return codes;
}

// The same for both vectors of a unit, if the neighbouring lane (lane ^ 1) has the columns next to each of
// them: the even lane stores 16 codes of the first vectors, the odd one of the second. Called by all lanes;
// in: whether it has values.
template <DType kFormat, class T>
__device__ inline void emit_pair(uint2 (&codes)[2], const Sink<T>& out, int64_t row, const Place& p, bool in,
                                 const float (&y)[2][8], float scale, uint32_t& amax) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const uint32_t m = magnitude8(y[k]);
    amax = max(amax, m);
    codes[k] = encode8<kFormat>(y[k], scale, m);
    if (in && out.plain && !p.kept) store8(out.plain + row + p.col[k], pack<T>(y[k]));
  }
  if (!out.q) return;
  const bool odd = threadIdx.x % 2;
  uint2 far = odd ? codes[0] : codes[1];
  far.x = __shfl_xor_sync(~0u, far.x, 1), far.y = __shfl_xor_sync(~0u, far.y, 1);
  const uint4 both = odd ? uint4{far.x, far.y, codes[1].x, codes[1].y} : uint4{codes[0].x, codes[0].y, far.x, far.y};
  if (in) *reinterpret_cast<uint4*>(out.q + row + (odd ? p.col[1] - 8 : p.col[0])) = both;
}

}  // namespace octet::BACKEND
