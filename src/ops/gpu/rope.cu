// Rotary embedding. Forward turns q and k in place: a thread turns 8 pairs of four heads by the same angles.
// Backward is a producer whose unit is a pair of vectors (i, i + R/2), so that it may write over its input and turn in
// one pass.
#include "ops/gpu/producer.cuh"

namespace octet::BACKEND {

namespace {

struct Layout {                       // of a row, in heads of D columns in the order they lie
  int heads, rotated_heads, D, half;  // half = R/2
  bool interleaved;
  __device__ int rotated_col(int r) const { return (interleaved ? r / 2 * 3 + r % 2 : r) * D; }
  __device__ bool is_value(int s) const { return interleaved ? s % 3 == 2 : s >= rotated_heads; }
};
struct Angles {
  const float* table;  // (positions, R/2, 2)
  unsigned T;          // rows are counted in 32 bits: a division of 64 costs more than the turn
  int64_t first;
  float sign;  // -1: back
  int half;
  template <bool kFast>
  __device__ void load(float4 (&pairs)[4], int64_t n, int i, int count) const {
    const float* p = table + ((int64_t(unsigned(n) % T) + first) * half + i) * 2;
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
      cos[2 * j] = pairs[j].x, sin[2 * j] = sign * pairs[j].y;
      cos[2 * j + 1] = pairs[j].z, sin[2 * j + 1] = sign * pairs[j].w;
    }
  }
};
__device__ inline void rotate(float (&a)[8], float (&b)[8], const float (&cos)[8], const float (&sin)[8]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float x = a[j], y = b[j];
    a[j] = x * cos[j] - y * sin[j];
    b[j] = y * cos[j] + x * sin[j];
  }
}

// Thread: row n, pairs i .. i+7, heads g, g + groups, ... four of them. The threads of a row lie together, so that what
// is on its way at one time is whole rows: pieces of a head from many rows cost a third of the memory's rate.
template <class T, bool kFast>
__global__ void __launch_bounds__(256)
    forward_kernel(T* x, const Layout l, const Angles angles, unsigned threads, int64_t width, int groups) {
  const unsigned vectors = (l.half + 7) / 8, index = blockIdx.x * 256u + threadIdx.x, each = index / vectors;
  if (index >= threads) return;
  const int i = int(index % vectors) * 8, g = int(each % groups), count = min(8, l.half - i);
  const int64_t n = each / groups;
  T* row = x + n * width + i;
  Pack<T> lo[4], hi[4];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (const int h = g + k * groups; h < l.rotated_heads) {
      lo[k] = load<kFast>(row + l.rotated_col(h), count);
      hi[k] = load<kFast>(row + l.rotated_col(h) + l.half, count);
    }
  float4 pairs[4];
  angles.load<kFast>(pairs, n, i, count);
  float cos[8], sin[8];
  angles.split(cos, sin, pairs);
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (const int h = g + k * groups; h < l.rotated_heads) {
      float a[8], b[8];
      unpack(a, lo[k]);
      unpack(b, hi[k]);
      rotate(a, b, cos, sin);
      store<kFast>(row + l.rotated_col(h), a, count);
      store<kFast>(row + l.rotated_col(h) + l.half, b, count);
    }
}

template <class T>
struct RopeBackward {
  static constexpr int kWays = 2;
  struct Raw {
    Pack<T> a, b;
#ifndef ROPE_OLD
    float4 angles[4];  // (cos, sin) of 8 pairs: on their way together with the values
#endif
  };
  const T* x;
  int64_t width;
  Layout l;
  Angles angles;
  int per_head, units;  // units
  __device__ Place place(int unit) const {
    const int s = unit / per_head, j = unit % per_head, col = s * l.D, pairs = (l.half + 7) / 8;
    const bool value = l.is_value(s);
    if (!value && j < pairs) {
      const int i = 8 * j, count = min(8, l.half - i);
      return {{col + i, col + l.half + i}, {count, count}, i};
    }
    const int from = value ? 16 * j : 2 * l.half + 16 * (j - pairs);  // copied through, 16 columns a unit
    return {{col + from, col + from + 8}, {max(0, min(8, l.D - from)), max(0, min(8, l.D - from - 8))}};
  }
  template <bool kFast>
  __device__ void load(Raw& raw, int64_t n, const Place& p) const {
    raw.a = BACKEND::load<kFast>(x + n * width + p.col[0], p.count[0]);
    raw.b = BACKEND::load<kFast>(x + n * width + p.col[1], p.count[1]);
#ifndef ROPE_OLD
    if (p.i >= 0) angles.load<kFast>(raw.angles, n, p.i, p.count[0]);
#endif
  }
  __device__ void compute(float (&y)[2][8], const Raw& raw, int64_t n, const Place& p) const {
    unpack(y[0], raw.a);
    unpack(y[1], raw.b);
    if (p.i < 0) return;
    float cos[8], sin[8];
#ifndef ROPE_OLD
    angles.split(cos, sin, raw.angles);
#else
    float4 pairs[4];
    if (l.half % 8 == 0) angles.load<true>(pairs, n, p.i, 8);
    else angles.load<false>(pairs, n, p.i, p.count[0]);
    angles.split(cos, sin, pairs);
#endif
    rotate(y[0], y[1], cos, sin);
  }
};

Layout layout_of(const Rope& r, Tensor qkv) {
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

// Turns q and k where they are.
void rotate_in_place(Stream& s, Tensor qkv, const Rope& r, float sign) {
  const Layout l = layout_of(r, qkv);
  const int64_t N = qkv.rows(), vectors = ceil_div(l.half, 8);
  if (N == 0 || l.half == 0) return;
  const int64_t groups = ceil_div(l.rotated_heads, 4), threads = N * vectors * groups;
  CHECK(threads < int64_t{1} << 32, "threads for ", qkv.shape, " are counted in 32 bits");
  const Angles angles{r.table.ptr<float>(), unsigned(r.T), r.first, sign, l.half};
  visit<float, bf16>(qkv.dtype, [&]<class T>() {
    with_bool(l.half % 8 == 0 && l.D % 8 == 0 && aligned({qkv.data}), [&]<bool kFast>() {
      forward_kernel<T, kFast><<<blocks_for(threads, 256), 256, 0, raw(s)>>>(qkv.ptr<T>(), l, angles, unsigned(threads),
                                                                             qkv.cols(), int(groups));
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void rope_forward(Stream& s, Tensor qkv, const Rope& rope) {
  const Timed timed(s, Kernel::rope);
  rotate_in_place(s, qkv, rope, 1.f);
}

void rope_backward(Stream& s, Operand d_out, Tensor d_in, const Rope& rope) {
  const Timed timed(s, Kernel::rope);
  if (d_out.plain.data == d_in.data && !d_out.q && !d_out.q_t && !d_out.slot.amax && !d_out.scale_inv) {
    rotate_in_place(s, d_in, rope, -1.f);
    return;
  }
  const Layout l = layout_of(rope, d_in);
  const int per_head = int(std::max(ceil_div(l.half, 8) + ceil_div(l.D - 2 * l.half, 16), ceil_div(l.D, 16)));
  visit<float, bf16>(d_in.dtype, [&]<class T>() {
    const Angles angles{rope.table.ptr<float>(), unsigned(rope.T), rope.first, -1.f, l.half};
    const RopeBackward<T> f{d_in.ptr<T>(), d_in.cols(), l, angles, per_head, per_head * l.heads};
    produce(s, f, Sink<T>(d_out, d_in.rows(), d_in.cols()), l.half % 8 == 0 && l.D % 8 == 0 && aligned({d_in.data}));
  });
}

}  // namespace octet::BACKEND
