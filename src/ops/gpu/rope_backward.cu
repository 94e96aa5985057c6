// Rotary embedding, backward: a producer whose unit is a pair of vectors (i, i + R/2), so that it may write over its
// input and turn in one pass.
#include "ops/gpu/rope.cuh"

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
    rotate<Turn::back>(y[0], y[1], cos, sin);
  }
};

}  // namespace

void rope_backward(Stream& s, Operand d_out, Tensor d_in, const Rope& rope) {
  const Timed timed(s, Kernel::rope);
  if (d_out.plain.data == d_in.data && !d_out.q && !d_out.q_t && !d_out.slot.amax && !d_out.scale_inv) {
    rotate_in_place(s, d_in, rope, Turn::back);
    return;
  }
  const Layout l = layout_of(rope, d_in);
  const int per_head = int(std::max(ceil_div(l.half, 8) + ceil_div(l.D - 2 * l.half, 16), ceil_div(l.D, 16)));
  visit<float, bf16>(d_in.dtype, [&]<class T>() {
    const Angles angles = angles_of(rope);
    const RopeBackward<T> f{d_in.ptr<T>(), d_in.cols(), l, angles, per_head, per_head * l.heads};
    const Sink<T> out(d_out, d_in.rows(), d_in.cols());
    const bool fast = l.half % 8 == 0 && l.D % 8 == 0 && aligned({d_in.data});
    produce(s, f, out, fast);
  });
}

}  // namespace octet::BACKEND
