#pragma once
// The element-wise mathematics, written once; constexpr makes it device code too.
#include <bit>
#include <cmath>
#include <cstdint>

namespace octet {

template <class R> constexpr R sigmoid(R x) { return R(1) / (R(1) + std::exp(-x)); }
template <class R> constexpr R silu(R x) { return x * sigmoid(x); }
template <class R> constexpr R silu_grad(R x) {
  const R s = sigmoid(x);
  return s * (R(1) + x * (R(1) - s));
}

// GELU: x * Phi(x), and its tanh form 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3)
template <class R> constexpr R gelu(R x) { return x * R(0.5) * (R(1) + std::erf(x * R(0.7071067811865475244))); }
template <class R> constexpr R gelu_grad(R x) {
  return R(0.5) * (R(1) + std::erf(x * R(0.7071067811865475244))) +
         x * R(0.3989422804014326779) * std::exp(R(-0.5) * x * x);
}
template <class R> constexpr R gelu_tanh(R x) {
  return R(0.5) * x * (R(1) + std::tanh(R(0.7978845608028653559) * (x + R(0.044715) * x * x * x)));
}
template <class R> constexpr R gelu_tanh_grad(R x) {
  const R t = std::tanh(R(0.7978845608028653559) * (x + R(0.044715) * x * x * x));
  return R(0.5) * (R(1) + t) +
         R(0.5) * x * (R(1) - t * t) * R(0.7978845608028653559) * (R(1) + R(3 * 0.044715) * x * x);
}

constexpr float kLargestFloat = 3.402823466e38f;

// largest / amax, correctly rounded; rounded down to a power of two on request; never infinite.
constexpr float scale_of(float largest, float amax, bool power_of_2) {
  float s = largest / amax;
  if (!(s <= kLargestFloat)) s = kLargestFloat;
  if (power_of_2) s = std::bit_cast<float>(std::bit_cast<uint32_t>(s) & 0xff800000u);
  return s;
}

// One column of the delayed-scaling update (FP8.md §1.3 of the design: the rule of Transformer Engine's fused kernel).
// history (L) at a stride: oldest in row 1, newest in row L-1, row 0 is only TE's live accumulator. amax == 0 means "did not
// run": no roll, no new scale. te_compat keeps TE's quirks: inf is stored and freezes `max` until it leaves the window, NaN
// is stored and skipped by the maximum. Otherwise a non-finite amax never enters the history. Returns the new scale.
struct ScaleRule {
  float largest;
  int64_t length, stride;
  bool most_recent, te_compat, power_of_2, rescale;
};
constexpr float delayed_scale(const ScaleRule& r, float scale, float last, float* history) {
  const bool finite = last <= kLargestFloat;  // false for NaN too
  if (last == 0 || (!finite && !r.te_compat)) return scale;
  float amax = 0;
  for (int64_t i = 0; i < r.length; ++i) {
    const float a = i < r.length - 1 ? history[(i + 1) * r.stride] : last;
    amax = a > amax ? a : amax;  // skips a NaN as fmaxf does
    history[i * r.stride] = i > 0 ? a : 0;
  }
  if (r.most_recent) amax = last;
  if (!r.rescale || !(amax > 0 && amax <= kLargestFloat)) return scale;
  return scale_of(r.largest, amax, r.power_of_2);
}

}  // namespace octet
