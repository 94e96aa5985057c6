#pragma once
// Rows of the cpu engine: widening to the type that T is computed in, and sums whose order no alignment and no thread
// changes.
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "ops/ops.h"

namespace octet::BACKEND {

template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;  // what T is computed in

template <class F>
void visit_plain(DType t, F&& f) {  // activations, parameters, their gradients
  visit<double, float, bf16>(t, f);
}

template <class R>
std::unique_ptr<R[]> buffer(int64_t n) {
  return std::make_unique_for_overwrite<R[]>(size_t(n));
}

template <class T, class R>
constexpr std::array<R, 256> decoded() {
  std::array<R, 256> values{};
  for (int i = 0; i < 256; ++i) {
    T t{};
    t.bits = uint8_t(i);
    values[size_t(i)] = R(float(t));
  }
  return values;
}
template <class T, class R>
inline constexpr std::array<R, 256> kDecoded = decoded<T, R>();

template <class R, class T>
void widen(R* out, const T* in, int64_t n) {
  if constexpr (sizeof(T) == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = kDecoded<T, R>[in[i].bits];
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = R(Real<T>(in[i]));
  }
}
template <class T, class R>
void narrow(T* out, const R* in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(Real<T>(in[i]));
}
template <class R>
void load(R* out, const Tensor& x, int64_t first, int64_t n) {
  visit_plain(x.dtype, [&]<class T>() { widen(out, x.ptr<T>() + first, n); });
}
template <class R>
void store(const Tensor& y, int64_t first, const R* in, int64_t n) {
  visit_plain(y.dtype, [&]<class T>() { narrow(y.ptr<T>() + first, in, n); });
}

// sum_i f(i), in 16 lanes that are added in order at the end: vectorises, and has one order only.
template <class R, class F>
R lane_sum(int64_t n, F&& f) {
  constexpr int64_t kLanes = 16;
  R lane[kLanes] = {};
  const int64_t whole = n - n % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) lane[j] += f(i + j);
  for (int64_t i = whole; i < n; ++i) lane[i - whole] += f(i);
  R sum = 0;
  for (R s : lane) sum += s;
  return sum;
}

template <class R>
R largest_of(const R* x, int64_t n) {  // passes over NaN
  constexpr int64_t kLanes = 16;
  R lane[kLanes];
  for (R& m : lane) m = -INFINITY;
  const int64_t whole = n - n % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
  for (int64_t i = whole; i < n; ++i) lane[0] = x[i] > lane[0] ? x[i] : lane[0];
  R m = lane[0];
  for (R v : lane) m = v > m ? v : m;
  return m;
}

// exp without a branch or a call, so that loops over rows vectorise: 2^n times a polynomial on [-ln2/2, ln2/2], about
// 1 ulp; below -87 it is 0 (a weight of 1e-38 beside 1), above 88 infinite, NaN stays NaN.
inline float fast_exp(float x) {
  constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
  const float t = x * 1.44269504f + kRound, n = t - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  const uint32_t power = (std::bit_cast<uint32_t>(t) << 23) + 0x3f800000u;
  const float y = p * std::bit_cast<float>(power);
  return x < -87.f ? 0.f : x > 88.f ? INFINITY : y;
}
inline double fast_exp(double x) { return std::exp(x); }

// x[i] = exp(x[i] - shift); returns the sum.
template <class R>
R exp_row(R* x, int64_t n, R shift) {
  for (int64_t i = 0; i < n; ++i) x[i] = fast_exp(x[i] - shift);
  return lane_sum<R>(n, [=](int64_t i) { return x[i]; });
}

}  // namespace octet::BACKEND
