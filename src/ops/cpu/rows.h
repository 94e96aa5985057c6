#pragma once
// Rows of the cpu engine: widening to the type in which T is computed, and sums whose order depends neither on
// alignment nor on the number of threads.
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "ops/ops.h"

namespace octet::BACKEND {

template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;  // the type in which T is computed

template <class F>
void visit_plain(DType t, F&& f) {  // activations, parameters, their gradients
  visit<double, float, bf16, f16>(t, f);
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

// sum_i f(i) in 16 lanes, which are added in order at the end: vectorises, and has a fixed order.
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
R largest_of(const R* x, int64_t n) {  // skips NaN
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

}  // namespace octet::BACKEND
