#pragma once
// Formulas of one element or one slot: constexpr functions, which are device code too. Delayed scaling and the
// optimizer step are the cpu and gpu engines' alike; the activations are those of the gpu engine in fp32 (the cpu
// engine's vectorise: ops/cpu/fast_math.h).
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/float.h"
#include "base/rng.h"

namespace octet {

// (value / largest)² of each magnitude of an FP8 format, in units of 2^-30, so that sums are exact; 0 of what is not
// finite.
struct CodeSquares {
  static constexpr double kUnit = 0x1p-30;
  uint32_t of[128] = {};
  template <class Float8>
  static constexpr CodeSquares make() {
    CodeSquares squares;
    for (int i = 0; i < 128; ++i) {
      Float8 code;
      code.bits = uint8_t(i);
      const double share = double(float(code)) / double(Float8::largest());
      squares.of[i] = share <= 1 ? uint32_t(share * share / kUnit + 0.5) : 0;
    }
    return squares;
  }
};

template <class R>
constexpr R sigmoid(R x) {
  return R(1) / (R(1) + std::exp(-x));
}

// GELU: x * Phi(x), Phi(x) = erfc(-x/sqrt(2)) / 2, which keeps its digits far below 0 where 1 + erf has none left;
// and its tanh form 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
template <class R>
constexpr R normal_cdf(R x) {
  return R(0.5) * std::erfc(x * R(-0.7071067811865475244));
}
template <class R>
constexpr R gelu(R x) {
  return x * normal_cdf(x);
}
template <class R>
constexpr R gelu_grad(R x) {
  return normal_cdf(x) + x * R(0.3989422804014326779) * std::exp(R(-0.5) * x * x);
}
template <class R>
constexpr R gelu_tanh_argument(R x) {  // 2u
  return R(2 * 0.7978845608028653559) * (x + R(0.044715) * x * x * x);
}
template <class R>
constexpr R gelu_tanh(R x) {
  return x * sigmoid(gelu_tanh_argument(x));
}
template <class R>
constexpr R gelu_tanh_grad(R x) {
  const R s = sigmoid(gelu_tanh_argument(x)), rest = sigmoid(-gelu_tanh_argument(x));  // 1 - s, with its digits
  return s + x * s * rest * R(2 * 0.7978845608028653559) * (R(1) + R(3 * 0.044715) * x * x);
}

constexpr float kLargestFloat = 3.402823466e38f;

// largest / amax, correctly rounded; rounded down to a power of two on request; never infinite.
constexpr float scale_of(float largest, float amax, bool power_of_2) {
  float s = largest / amax;
  if (!(s <= kLargestFloat)) s = kLargestFloat;
  if (power_of_2) s = std::bit_cast<float>(std::bit_cast<uint32_t>(s) & 0xff800000u);
  return s;
}

// The delayed-scaling update of one slot, as in Transformer Engine's fused kernel. `last` is its amax since the last
// update, history (L, `stride` apart) its earlier ones: oldest in row 1, newest in row L-1; row 0, TE's live
// accumulator, is 0 between updates. Returns the new scale.
//   last == 0           the slot was not used: its history does not roll and its scale stays.
//   last is not finite  it never enters the history. te_compat keeps TE's quirks instead: inf is stored and, under the
//                       maximum rule, freezes the scale until it has left the window; NaN is stored, and skipped.
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

// Whether a slot was ever used (ops.h: inherit_scales). Scales are 4 floats apart, rows of the history `stride`.
constexpr bool used_scale(const float* scale, const float* history, int64_t length, int64_t stride, int64_t slot) {
  return length > 1 ? history[(length - 1) * stride + slot] != 0 : scale[4 * slot] != 1;
}

// ---- the optimizer step

// Stochastic rounding to bf16: random16 < 2^16 is added to the 16 bits below bf16's last one, which are then cut off.
constexpr bf16 round_stochastic(float f, uint32_t random16) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const bool finite = (u & 0x7f800000u) != 0x7f800000u;  // inf and NaN have no neighbour
  bf16 y{};
  y.bits = uint16_t((u + (finite ? random16 & 0xffffu : 0u)) >> 16 | (f != f ? 0x40u : 0u));
  return y;
}
// 32 random bits for each element of a parameter in a step, one 64-bit hash for a pair of elements.
// All elements share the key.
constexpr uint64_t rounding_key(uint64_t seed, uint64_t step, uint64_t stream) {
  return random_key(seed ^ mix(step + 1), stream);
}
constexpr uint32_t rounding_bits(uint64_t key, uint64_t index) {
  return uint32_t(mix(key + (index >> 1)) >> (index & 1 ? 32 : 0));
}
// The 16 of them that round each of the element's tensors. m and v share none; the master's are a hash of both.
enum class Rounded : uint8_t { m, v, master };
constexpr uint32_t rounding_part(uint32_t bits, Rounded what) {
  return what == Rounded::m ? bits & 0xffffu : what == Rounded::v ? bits >> 16 : bits * 0x9e3779b1u >> 16;
}

// AdamW of one element, in R. Bias corrections are computed in f64, once for many elements; `t` counts updates from 1.
template <class R>
struct AdamwScalars {
  R lr, beta1, rest1, beta2, rest2, eps, decay, clip, correction1,
      correction2;  // rest = 1 - beta, exact before its cast
};
struct AdamwRates {
  double lr, beta1, beta2, eps, decay, clip;
};
template <class R>
constexpr AdamwScalars<R> adamw_scalars(const AdamwRates& a, uint32_t t) {
  return {R(a.lr),
          R(a.beta1),
          R(1 - a.beta1),
          R(a.beta2),
          R(1 - a.beta2),
          R(a.eps),
          R(a.decay),
          R(a.clip),
          R(1 / (1 - std::pow(a.beta1, double(t)))),
          R(1 / (1 - std::pow(a.beta2, double(t))))};
}
template <class R>
constexpr void adamw_element(R& w, R& m, R& v, R grad, const AdamwScalars<R>& a) {
  const R g = a.clip * grad;
  m = a.beta1 * m + a.rest1 * g;
  v = a.beta2 * v + a.rest2 * g * g;
  w -= a.lr * (m * a.correction1 / (std::sqrt(v * a.correction2) + a.eps) + a.decay * w);
}

// ops.h: finish_gradients.
template <class State>
constexpr void next_loss_scale(State& s, int64_t growth_every) {
  constexpr float kSmallest = 1, kLargest = 0x1p24f;
  if (s.skip) {
    s.good_steps = 0;
    if (s.loss_scale > kSmallest) s.loss_scale = s.loss_scale / 2 > kSmallest ? s.loss_scale / 2 : kSmallest;
  } else if (int64_t(++s.good_steps) >= growth_every) {
    s.good_steps = 0;
    if (s.loss_scale < kLargest) s.loss_scale = s.loss_scale * 2 < kLargest ? s.loss_scale * 2 : kLargest;
  }
}
template <class State>
constexpr void finish_step(State& s, double max_norm, int64_t growth_every) {
  const double scale = s.loss_scale, norm = std::sqrt(s.squares) / scale;
  const bool finite = std::isfinite(s.loss) && norm <= double(kLargestFloat);  // false for NaN too
  s.norm = float(norm);
  s.clip = finite && max_norm > 0 && norm > max_norm ? float(max_norm / norm / scale) : float(1 / scale);
  s.skip = !finite || s.nonfinite_casts > 0;
  ++(s.skip ? s.skipped : s.updates);
  if (growth_every > 0) next_loss_scale(s, growth_every);
}

}  // namespace octet
