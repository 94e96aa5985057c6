#pragma once
// exp, sigmoid, Phi and sums of exp, in fp32 without branches and calls, so that loops over rows vectorise. f64, in
// which derivatives are checked, takes the standard library's functions.
#include "ops/cpu/rows.h"

namespace octet::BACKEND {

// exp without a branch or a call, so that loops over rows vectorise: 2^n times a polynomial on [-ln2/2, ln2/2], about
// 1 ulp; 0 below -87 (negligible beside a weight of 1), no larger than exp(88); NaN stays NaN. The range is cut on
// integers, because compilers keep branches on floats that may trap.
[[gnu::always_inline]] inline float fast_exp(float x) {
  constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
  constexpr uint32_t k87 = std::bit_cast<uint32_t>(87.f), k88 = std::bit_cast<uint32_t>(88.f), kInfinity = 0x7f800000;
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits & 0x80000000u, size = bits & 0x7fffffffu;
  const uint32_t number = 0u - uint32_t(size <= kInfinity);  // all ones or none, as are those below
  const uint32_t large = number & (0u - uint32_t(size > k88)),
                 none = number & (0u - uint32_t(bits > (k87 | 0x80000000u)));
  const float y = std::bit_cast<float>(sign | (large & k88) | (~large & size));
  const float t = y * 1.44269504f + kRound, n = t - kRound;
  const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  const uint32_t power = (std::bit_cast<uint32_t>(t) << 23) + 0x3f800000u;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p * std::bit_cast<float>(power)) & ~none);
}
inline double fast_exp(double x) { return std::exp(x); }

template <class R>
[[gnu::always_inline]] inline R fast_sigmoid(R x) {
  return R(1) / (R(1) + fast_exp(-x));
}

// erfc of z >= 0, relative error 1.2e-7 (Press et al., Numerical Recipes, "erfcc").
[[gnu::always_inline]] inline float fast_erfc(float z) {
  const float t = 1.f / (1.f + 0.5f * z);
  float p = 0.17087277f;
  p = p * t - 0.82215223f;
  p = p * t + 1.48851587f;
  p = p * t - 1.13520398f;
  p = p * t + 0.27886807f;
  p = p * t - 0.18628806f;
  p = p * t + 0.09678418f;
  p = p * t + 0.37409196f;
  p = p * t + 1.00002368f;
  return t * fast_exp(-z * z - 1.26551223f + t * p);
}
inline double fast_erfc(double z) { return std::erfc(z); }

// The normal distribution function, computed from its smaller tail, so that it is accurate far below 0, too.
template <class R>
[[gnu::always_inline]] inline R fast_phi(R x) {
  const R tail = R(0.5) * fast_erfc(std::fabs(x) * R(0.7071067811865475244));
  const R side = std::copysign(R(1), x);  // x < 0: tail, else 1 - tail, without a branch
  return (R(1) + side) / 2 - side * tail;
}

// x[i] = exp(x[i] - shift); returns the sum.
template <class R>
R exp_row(R* x, int64_t n, R shift) {
  for (int64_t i = 0; i < n; ++i) x[i] = fast_exp(x[i] - shift);
  return lane_sum<R>(n, [=](int64_t i) { return x[i]; });
}

}  // namespace octet::BACKEND
