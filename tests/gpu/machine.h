#pragma once
// A GPU with tensors that are uploaded from f64 on the host, and downloaded as f64.
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "ops/ops.h"

namespace octet::gpu {

using Values = std::vector<double>;

inline Values normals(int64_t n, uint64_t stream) {
  Values v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = normal(1, stream, i);
  return v;
}

inline double relative_error(const Values& y, const Values& ref) {
  double error = 0, size = 0;
  for (size_t i = 0; i < ref.size(); ++i) {
    error += (y[i] - ref[i]) * (y[i] - ref[i]);
    size += ref[i] * ref[i];
  }
  return std::sqrt(error / size);
}
inline Values rounded(const Values& x, DType t) {
  Values y(x.size());
  visit<float, bf16, e4m3, e5m2>(t, [&]<class T>() {
    for (size_t i = 0; i < x.size(); ++i) y[i] = double(float(T(float(x[i]))));
  });
  return y;
}

struct Machine {
  explicit Machine(const Device::Options& o = {}) : device(o), stream(device) {}
  ~Machine() {
    for (void* p : buffers) device_free(device, p);
  }
  Tensor tensor(DType t, Shape shape, int64_t offset = 0) {  // begins `offset` elements after an aligned address
    void* p = device_alloc(device, size_t(shape.numel() + offset) * size_of(t));
    buffers.push_back(p);
    return Tensor{p, t, {shape.numel() + offset}}.part(offset, shape);
  }
  Tensor upload(DType t, Shape shape, const Values& x, int64_t offset = 0) {
    const Tensor y = tensor(t, shape, offset);
    visit<float, bf16, e4m3, e5m2>(t, [&]<class T>() {
      std::vector<T> host(x.size());
      for (size_t i = 0; i < x.size(); ++i) host[i] = T(float(x[i]));
      copy_to_device(stream, y.data, host.data(), y.bytes());
      stream.synchronize();
    });
    return y;
  }
  Values download(Tensor t) {
    Values y(size_t(t.numel()));
    visit<float, bf16>(t.dtype, [&]<class T>() {
      std::vector<T> host(y.size());
      copy_to_host(stream, host.data(), t.data, t.bytes());
      stream.synchronize();
      for (size_t i = 0; i < y.size(); ++i) y[i] = double(float(host[i]));
    });
    return y;
  }
  const float* scalar(double x) { return static_cast<const float*>(upload(DType::f32, {4}, {x, x, x, x}).data); }

  Device device;
  Stream stream;
  std::vector<void*> buffers;
};

}  // namespace octet::gpu
