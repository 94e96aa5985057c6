#pragma once
// Tensors of a test on the cpu engine: memory that starts as NaN, inputs from counters, values as f64.
#include <omp.h>

#include <cstring>
#include <deque>
#include <span>
#include <vector>

#include "base/rng.h"
#include "ops/ops.h"
#include "ops/workspace.h"

namespace octet::BACKEND {

class Lab {
 public:
  Stream& stream() { return stream_; }
  Tensor empty(DType t, Shape shape) {
    Tensor y{nullptr, t, shape};
    memory_.emplace_back(y.bytes() + 1, 0xFF);  // NaN in every float format
    y.data = memory_.back().data();
    return y;
  }
  Tensor zeros(DType t, Shape shape) {
    Tensor y = empty(t, shape);
    std::memset(y.data, 0, y.bytes());
    return y;
  }
  // Normal numbers rounded to bf16, so that every type holds the same.
  Tensor normal(DType t, Shape shape, double std = 1, double mean = 0) {
    Tensor y = empty(t, shape);
    const uint64_t stream = draws_++;
    visit<double, float, bf16, f16>(t, [&]<class T>() {
      for (int64_t i = 0; i < y.numel(); ++i)
        y.ptr<T>()[i] = T(float(bf16(float(mean + std * octet::normal(1, stream, uint64_t(i))))));
    });
    return y;
  }
  template <class T>
  Tensor of(const std::vector<T>& v) {
    Tensor y = empty(dtype_of<T>, {int64_t(v.size())});
    std::memcpy(y.data, v.data(), y.bytes());
    return y;
  }
  Tensor copy(Tensor x) {
    Tensor y = empty(x.dtype, x.shape);
    std::memcpy(y.data, x.data, x.bytes());
    return y;
  }
  Tensor partial(DType t, int64_t C, int64_t times = 1) {
    return empty(wide(t), {times * partial_rows(stream_.target()), C});
  }

 private:
  Device device_{Device::Options{}};
  Stream stream_{device_};
  std::deque<std::vector<uint8_t>> memory_;
  uint64_t draws_ = 0;
};

inline std::vector<double> values(Tensor x) {
  std::vector<double> v(size_t(x.numel()));
  visit<double, float, f16, bf16, e4m3, e5m2, int32_t, uint32_t>(x.dtype, [&]<class T>() {
    for (size_t i = 0; i < v.size(); ++i) {
      if constexpr (std::is_integral_v<T> || std::is_same_v<T, double>) v[i] = double(x.ptr<T>()[i]);
      else v[i] = double(float(x.ptr<T>()[i]));
    }
  });
  return v;
}
inline std::span<double> span_of(Tensor x) { return {x.ptr<double>(), size_t(x.numel())}; }
inline bool same_bits(Tensor a, Tensor b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data, b.data, a.bytes()) == 0;
}
inline double dot(Tensor a, Tensor b) {
  const auto x = values(a), y = values(b);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}
// 1 - 2 <x,y> / (|x|^2 + |y|^2)
inline double distance(const std::vector<double>& x, const std::vector<double>& y) {
  double xy = 0, norms = 0, error = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += x[i] * y[i];
    norms += x[i] * x[i] + y[i] * y[i];
    error += (x[i] - y[i]) * (x[i] - y[i]);
  }
  return norms == 0 ? 0 : error / norms;  // the same, without cancellation
}

// cos and sin of t * 10000^(-2i/R)
inline Tensor rope_table(Lab& lab, DType t, int64_t positions, int64_t R) {
  Tensor y = lab.empty(wide(t), {positions, R / 2, 2});
  visit<double, float>(y.dtype, [&]<class T>() {
    for (int64_t p = 0; p < positions; ++p)
      for (int64_t i = 0; i < R / 2; ++i) {
        const double angle = double(p) * std::pow(10000.0, -2.0 * double(i) / double(R));
        y.ptr<T>()[(p * (R / 2) + i) * 2] = T(std::cos(angle));
        y.ptr<T>()[(p * (R / 2) + i) * 2 + 1] = T(std::sin(angle));
      }
  });
  return y;
}

// Attention::documents of sequences of equal length, from the lengths of the documents of each.
inline Tensor documents(Lab& lab, const std::vector<std::vector<int64_t>>& lengths) {
  std::vector<int32_t> begins, ends;
  for (const std::vector<int64_t>& sequence : lengths) {
    int64_t begin = 0;
    for (const int64_t length : sequence) {
      begins.insert(begins.end(), size_t(length), int32_t(begin));
      ends.insert(ends.end(), size_t(length), int32_t(begin + length));
      begin += length;
    }
  }
  const int64_t B = int64_t(lengths.size()), T = int64_t(begins.size()) / B;
  begins.insert(begins.end(), ends.begin(), ends.end());
  return lab.of(begins).as(DType::i32, {2, B, T});
}

class Threads {  // for a scope
 public:
  explicit Threads(int n) : before_(omp_get_max_threads()) {
#ifdef __SANITIZE_THREAD__  // libgomp's own synchronisation is invisible to it: every parallel region would be a race
    n = 1;
#endif
    omp_set_num_threads(n);
  }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace octet::BACKEND
