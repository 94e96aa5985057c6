#pragma once
// Rotary embedding: the layout of the heads in a row, and the angles of a position.
#include "ops/gpu/producer.cuh"

namespace octet::BACKEND {

struct Layout {                       // a row of qkv as a sequence of q, k and v heads, of D columns each
  int heads, rotated_heads, D, half;  // half = R/2
  bool interleaved;
  __device__ int rotated_col(int r) const { return (interleaved ? r / 2 * 3 + r % 2 : r) * D; }
  __device__ bool is_value(int s) const { return interleaved ? s % 3 == 2 : s >= rotated_heads; }
};
struct Angles {
  const float* table;      // (positions, R/2, 2)
  unsigned T, reciprocal;  // floor(2^32 / T): dividing row numbers of 32 bits by T would cost as much as all the rest
  int64_t first;
  int half;
  const int32_t* start;  // of each sequence, or none
  __device__ int64_t position(unsigned n) const {
    unsigned b = __umulhi(n, reciprocal);  // the quotient, or one less
    unsigned t = n - b * T;
    if (t >= T) t -= T, ++b;
    return t + first + (start ? __ldg(start + b) : 0);
  }
  __device__ const float* at(int64_t position, int i) const { return table + (position * half + i) * 2; }
  template <bool kFast>
  __device__ void load(float4 (&pairs)[4], int64_t n, int i, int count) const {
    const float* p = at(position(unsigned(n)), i);
    if constexpr (kFast) {
#pragma unroll
      for (int j = 0; j < 4; ++j) pairs[j] = __ldg(reinterpret_cast<const float4*>(p) + j);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool one = 2 * j < count, two = 2 * j + 1 < count;
        pairs[j] = {one ? p[4 * j] : 1.f, one ? p[4 * j + 1] : 0.f, two ? p[4 * j + 2] : 1.f, two ? p[4 * j + 3] : 0.f};
      }
    }
  }
  __device__ void split(float (&cos)[8], float (&sin)[8], const float4 (&pairs)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      cos[2 * j] = pairs[j].x, sin[2 * j] = pairs[j].y;
      cos[2 * j + 1] = pairs[j].z, sin[2 * j + 1] = pairs[j].w;
    }
  }
};
enum class Rotation { forward, inverse };
template <Rotation kRotation>
__device__ inline void rotate(float (&a)[8], float (&b)[8], const float (&cos)[8], const float (&sin)[8]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float x = a[j], y = b[j];
    a[j] = kRotation == Rotation::forward ? x * cos[j] - y * sin[j] : x * cos[j] + y * sin[j];
    b[j] = kRotation == Rotation::forward ? y * cos[j] + x * sin[j] : y * cos[j] - x * sin[j];
  }
}

inline Angles angles_of(const Rope& r) {
  const unsigned T = unsigned(std::max<int64_t>(r.T, 1));
  return {r.table.ptr<float>(),
          T,
          T == 1 ? ~0u : unsigned((uint64_t{1} << 32) / T),
          r.first,
          int(r.table.shape[1]),
          r.start ? r.start.ptr<int32_t>() : nullptr};
}
inline Layout layout_of(const Rope& r, Tensor qkv) {
  const Shape& s = r.table.shape;
  const Heads& h = r.heads;
  CHECK(s.rank == 3 && s[2] == 2 && 2 * s[1] <= h.D, "table ", s, ", head size ", h.D);
  CHECK(qkv.cols() == h.width(), qkv.shape, " is not ", h.width(), " wide");
  CHECK(r.first >= 0 && std::min(r.T, qkv.rows()) + r.first <= s[0], r.T, " + ", r.first, " positions of ", s[0]);
  CHECK(!h.interleaved || h.G == h.H, "interleaved heads come with their own k and v");
  CHECK(aligned({r.table.data}), "the table is read 16 bytes at a time");
  CHECK(qkv.rows() < int64_t{1} << 32 && r.T < int64_t{1} << 32, "rows of ", qkv.shape, " are counted in 32 bits");
  return {int(h.H + 2 * h.G), int(h.H + h.G), int(h.D), int(s[1]), h.interleaved};
}

// Rotates q and k in place.
void rotate_in_place(Stream& s, Tensor qkv, const Rope& r, Rotation rotation);

}  // namespace octet::BACKEND
