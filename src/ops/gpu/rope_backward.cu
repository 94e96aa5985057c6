// Rotary embedding, backward: a producer whose unit is a pair of vectors (i, i + R/2), so that it may overwrite its
// input and write the FP8 forms, transposed ones too, in one pass.
#include "ops/gpu/rope_narrow.cuh"

namespace octet::BACKEND {

namespace {

template <class T>
struct RopeBackward {
  static constexpr int kWays = 2;
  struct Raw {
    Pack<T> a, b;
  };
  const T* x;
  int64_t width;
  Layout l;
  Angles angles;
  int per_head, units;  // units of a head, and of a row
  bool in_place;        // columns that are not rotated need not be written
  __device__ Place place(int unit) const {
    const int s = unit / per_head, j = unit % per_head, col = s * l.D, pairs = (l.half + 7) / 8;
    const bool value = l.is_value(s);
    if (!value && j < pairs) {
      const int i = 8 * j, count = min(8, l.half - i);
      return {{col + i, col + l.half + i}, {count, count}, i};
    }
    // Columns from `first` on are copied: a unit has one vector of their first half, and one of their second.
    const int first = value ? 0 : 2 * l.half, at = 8 * (value ? j : j - pairs), width = l.D - first,
              half = (width + 15) / 16 * 8;
    if (at >= half) return {};
    return {.col = {col + first + at, col + first + half + at},
            .count = {min(8, width - at), max(0, min(8, width - half - at))},
            .kept = in_place};
  }
  bool adjacent() const { return l.half % 16 == 0 && (l.D - 2 * l.half) % 32 == 0; }
  template <bool kFast>
  __device__ void load(Raw& raw, int64_t n, const Place& p) const {
    raw.a = BACKEND::load<kFast>(x + n * width + p.col[0], p.count[0]);
    raw.b = BACKEND::load<kFast>(x + n * width + p.col[1], p.count[1]);
  }
  __device__ void compute(float (&y)[2][8], const Raw& raw, int64_t n, const Place& p) const {
    unpack(y[0], raw.a);
    unpack(y[1], raw.b);
    if (p.i < 0) return;
    float cos[8], sin[8];
    float4 pairs[4];
    if (l.half % 8 == 0) angles.load<true>(pairs, n, p.i, 8);
    else angles.load<false>(pairs, n, p.i, p.count[0]);
    angles.split(cos, sin, pairs);
    rotate<Rotation::inverse>(y[0], y[1], cos, sin);
  }
};

// The same, for 8 rows of a thread that are consecutive positions of a sequence (T % 8 == 0) and Rope::rounded unset:
// the angles of the first row are loaded, those of each next row follow by rotating them by the angles of position 1,
// which stay in L1. Loading them all limited the kernel, as they are twice the bytes of the gradients. After seven
// rotations (cos, sin) is some 4e-7 off, far below the precision of bf16 gradients.
struct RopeBackwardRecurrent : RopeBackward<bf16> {
  struct Carry {
    float4 now[4];  // (cos, sin) of 8 angles
  };
  __device__ void begin(Carry& c, int64_t n, const Place& p) const { angles.load<true>(c.now, n, max(p.i, 0), 8); }
  __device__ void compute(float (&y)[2][8], const Raw& raw, int64_t, const Place& p, Carry& c) const {
    unpack(y[0], raw.a);
    unpack(y[1], raw.b);
    if (p.i < 0) return;
    float cos[8], sin[8];
    angles.split(cos, sin, c.now);
    rotate<Rotation::inverse>(y[0], y[1], cos, sin);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 a = c.now[j], b = __ldg(reinterpret_cast<const float4*>(angles.at(1, p.i)) + j);
      c.now[j] = {a.x * b.x - a.y * b.y, a.y * b.x + a.x * b.y, a.z * b.z - a.w * b.w, a.w * b.z + a.z * b.w};
    }
  }
};

}  // namespace

void rope_backward(Stream& s, Operand d_out, Tensor d_in, const Rope& rope) {
  const Timed timed(s, Kernel::rope);
  if (d_out.plain.data == d_in.data && !d_out.q && !d_out.q_t && !d_out.slot.amax && !d_out.scale_inv) {
    rotate_in_place(s, d_in, rope, Rotation::inverse);
    return;
  }
  const Layout l = layout_of(rope, d_in);
  const bool in_place = d_out.plain.data == d_in.data;
  if (is_narrow(l) && d_in.dtype == DType::bf16 && aligned({d_in.data})) {
    const Sink<bf16> out(d_out, d_in.rows(), d_in.cols());
    const int per_head = int(ceil_div(l.D, 24));
    if (out.fast())
      return with_narrow_half(l.half, [&]<int kHalf>() {
        const RopeBackwardNarrow<kHalf> f{d_in.ptr<bf16>(), d_in.cols(),        l,       angles_of(rope),
                                          per_head,         per_head * l.heads, in_place};
        produce(s, f, out, true);
      });
  }
  const int per_head = int(std::max(ceil_div(l.half, 8) + ceil_div(l.D - 2 * l.half, 16), ceil_div(l.D, 16)));
  visit<float, bf16>(d_in.dtype, [&]<class T>() {
    const Angles angles = angles_of(rope);
    const RopeBackward<T> f{d_in.ptr<T>(), d_in.cols(), l, angles, per_head, per_head * l.heads, in_place};
    const Sink<T> out(d_out, d_in.rows(), d_in.cols());
    const bool fast = l.half % 8 == 0 && l.D % 8 == 0 && aligned({d_in.data});
    if constexpr (std::is_same_v<T, bf16>)
      if (fast && rope.T % 8 == 0 && !rope.rounded) return produce(s, RopeBackwardRecurrent{f}, out, fast);
    produce(s, f, out, fast);
  });
}

}  // namespace octet::BACKEND
