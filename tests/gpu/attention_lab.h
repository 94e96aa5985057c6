#pragma once
// Attention of some shapes on a GPU, and its definition in double precision on the CPU.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <deque>
#include <limits>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "device/device.h"
#include "ops/gpu/attention.h"
#include "ops/gpu/attention_kernels.h"
#include "ops/ops.h"
#include "ops/workspace.h"

namespace octet::gpu {

using Doubles = std::vector<double>;

struct Result {
  Doubles o, lse, dqkv;
};

// Inputs as stored, standard normal.
inline Doubles inputs(size_t n, uint64_t stream, DType t) {
  Doubles x(n);
  for (size_t i = 0; i < n; ++i) {
    const float v = float(normal(7, stream, i));
    x[i] = double(t == DType::bf16 ? float(bf16(v)) : v);
  }
  return x;
}

// The definition in ops.h, row by row. a.documents is in the host's memory.
class Reference {
 public:
  Reference(const Attention& a, const Doubles& qkv, const Doubles& d_o) : a_(a), h_(a.heads), qkv_(qkv), d_o_(d_o) {
    r_.o.resize(d_o.size()), r_.lse.resize(size_t(a.B * h_.H * a.T)), r_.dqkv.resize(qkv.size());
    std::atomic<int64_t> next = 0;
    const auto work = [&] {  // the query heads that read one kv head, which add to its gradients
      for (int64_t i = next++; i < a.B * h_.G; i = next++)
        for (int64_t h = i % h_.G * h_.H / h_.G; h < (i % h_.G + 1) * h_.H / h_.G; ++h)
          for (int64_t t = 0; t < a.T; ++t) row(i / h_.G, h, t);
    };
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  }
  const Result& result() const { return r_; }

 private:
  void row(int64_t b, int64_t h, int64_t t) {
    const int64_t g = h / (h_.H / h_.G), D = h_.D;
    int64_t first = a_.window ? std::max<int64_t>(0, t - a_.window + 1) : 0;
    if (a_.documents) first = std::max<int64_t>(first, a_.documents.ptr<int32_t>()[b * a_.T + t]);
    const size_t q = size_t((b * a_.T + t) * h_.width() + h_.q(h)), out = size_t(((b * a_.T + t) * h_.H + h) * D);
    auto key = [&](int64_t j) { return size_t((b * a_.T + j) * h_.width() + h_.k(g)); };
    const size_t to_value = size_t(h_.v(g) - h_.k(g));
    auto dot = [&](const Doubles& x, size_t i, const Doubles& y, size_t j) {
      double sum = 0;
      for (int64_t d = 0; d < D; ++d) sum += x[i + size_t(d)] * y[j + size_t(d)];
      return sum;
    };
    Doubles p;
    double top = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
    for (int64_t j = first; j <= t; ++j)
      p.push_back(a_.scale * dot(qkv_, q, qkv_, key(j))), top = std::max(top, p.back());
    for (double& v : p) sum += v = std::exp(v - top);
    r_.lse[size_t((b * h_.H + h) * a_.T + t)] = top + std::log(sum);
    for (int64_t j = first; j <= t; ++j) {
      double& v = p[size_t(j - first)];
      v /= sum;
      for (int64_t d = 0; d < D; ++d) r_.o[out + size_t(d)] += v * qkv_[key(j) + to_value + size_t(d)];
    }
    delta = dot(d_o_, out, r_.o, out);
    for (int64_t j = first; j <= t; ++j) {
      const double v = p[size_t(j - first)], ds = v * (dot(d_o_, out, qkv_, key(j) + to_value) - delta) * a_.scale;
      for (size_t d = 0; d < size_t(D); ++d) {
        r_.dqkv[q + d] += ds * qkv_[key(j) + d];
        r_.dqkv[key(j) + d] += ds * qkv_[q + d];
        r_.dqkv[key(j) + to_value + d] += v * d_o_[out + d];
      }
    }
  }

  const Attention& a_;
  const Heads& h_;
  const Doubles &qkv_, &d_o_;
  Result r_;
};

class Memory {  // device memory, poisoned at first
 public:
  Memory(Device& d, Stream& s, DType t, size_t n)
      : device_(d), tensor_{device_alloc(d, std::max<size_t>(n * size_of(t), 256)), t, {int64_t(n)}} {
    fill_byte(s, tensor_.data, 0xff, tensor_.bytes());
  }
  Memory(const Memory&) = delete;
  ~Memory() { device_free(device_, tensor_.data); }
  Tensor tensor() const { return tensor_; }
  void set(Stream& s, const Doubles& x) {
    std::vector<float> f(x.begin(), x.end());
    std::vector<bf16> b(x.size());
    for (size_t i = 0; i < x.size(); ++i) b[i] = bf16(f[i]);
    copy_to_device(s, tensor_.data, tensor_.dtype == DType::bf16 ? static_cast<void*>(b.data()) : f.data(),
                   tensor_.bytes());
    s.synchronize();
  }
  Doubles get(Stream& s) const {
    std::vector<char> bytes(tensor_.bytes());
    copy_to_host(s, bytes.data(), tensor_.data, bytes.size());
    s.synchronize();
    Doubles x(size_t(tensor_.numel()));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = double(tensor_.dtype == DType::bf16 ? float(reinterpret_cast<const bf16*>(bytes.data())[i])
                                                 : reinterpret_cast<const float*>(bytes.data())[i]);
    return x;
  }

 private:
  Device& device_;
  Tensor tensor_;
};

class Gpu {
 public:
  explicit Gpu(AttentionKind kind, bool deterministic = true, int as_capability = 0)
      : device_({.deterministic = deterministic, .target = {.compute_capability = as_capability, .attention = kind}}),
        stream_(device_) {}
  Device& device() { return device_; }
  Result run(const Attention& on_host, DType t, const Doubles& qkv_in, const Doubles& d_o_in) {
    const Here here(*this, on_host);
    const Attention& a = here.a;
    const size_t rows = size_t(a.B * a.T), wide_rows = rows * size_t(a.heads.H);
    Memory qkv(device_, stream_, t, qkv_in.size()), dqkv(device_, stream_, t, qkv_in.size());
    Memory o(device_, stream_, t, d_o_in.size()), d_o(device_, stream_, t, d_o_in.size());
    Memory lse(device_, stream_, DType::f32, wide_rows);
    const Target& target = device_.target();
    Memory forward(device_, stream_, DType::e4m3, size_t(attention_forward_workspace(target, a, t)));
    Memory backward(device_, stream_, DType::e4m3, size_t(attention_backward_workspace(target, a, t)));
    qkv.set(stream_, qkv_in), d_o.set(stream_, d_o_in);
    attention_forward(stream_, o.tensor(), lse.tensor(), qkv.tensor(), a, forward.tensor());
    attention_backward(stream_,
                       {.dqkv = dqkv.tensor(),
                        .d_o = d_o.tensor(),
                        .o = o.tensor(),
                        .lse = lse.tensor(),
                        .qkv = qkv.tensor(),
                        .workspace = backward.tensor()},
                       a);
    return {o.get(stream_), lse.get(stream_), dqkv.get(stream_)};
  }
  // With o and lse of the forward kernel in use, in bf16.
  Result backward_by_mma_sync(const Attention& on_host, const Doubles& qkv_in, const Doubles& d_o_in) {
    const Here here(*this, on_host);
    const Attention& a = here.a;
    const size_t heads = size_t(a.B * a.T * a.heads.H);
    Memory qkv(device_, stream_, DType::bf16, qkv_in.size()), dqkv(device_, stream_, DType::bf16, qkv_in.size());
    Memory o(device_, stream_, DType::bf16, d_o_in.size()), d_o(device_, stream_, DType::bf16, d_o_in.size());
    Memory lse(device_, stream_, DType::f32, heads), delta(device_, stream_, DType::f32, heads);
    Memory forward(device_, stream_, DType::e4m3,
                   size_t(attention_forward_workspace(device_.target(), a, DType::bf16)));
    qkv.set(stream_, qkv_in), d_o.set(stream_, d_o_in);
    native_attention_forward(stream_, {o.tensor(), lse.tensor(), qkv.tensor(), forward.tensor()}, a);
    const AttentionBackward t{.dqkv = dqkv.tensor(),
                              .d_o = d_o.tensor(),
                              .o = o.tensor(),
                              .lse = lse.tensor(),
                              .qkv = qkv.tensor(),
                              .workspace = delta.tensor()};
    attention_backward_q_bf16(stream_, t, a), attention_backward_kv_bf16(stream_, t, a);
    return {o.get(stream_), lse.get(stream_), dqkv.get(stream_)};
  }
  using Kernel = void(Stream&, const AttentionForward&, const Attention&);
  Result forward(Kernel kernel, const Attention& on_host, const Doubles& qkv_in) {  // in bf16
    const Here here(*this, on_host);
    const Attention& a = here.a;
    const size_t heads = size_t(a.B * a.T * a.heads.H);
    Memory qkv(device_, stream_, DType::bf16, qkv_in.size());
    Memory o(device_, stream_, DType::bf16, heads * size_t(a.heads.D)), lse(device_, stream_, DType::f32, heads);
    Memory workspace(device_, stream_, DType::e4m3,
                     size_t(attention_forward_workspace(device_.target(), a, DType::bf16)));
    qkv.set(stream_, qkv_in);
    kernel(stream_, {o.tensor(), lse.tensor(), qkv.tensor(), workspace.tensor()}, a);
    return {o.get(stream_), lse.get(stream_), {}};
  }

 private:
  struct Here {  // an attention whose documents are in device memory
    Memory documents;
    Attention a;
    Here(Gpu& gpu, const Attention& on_host)
        : documents(gpu.device_, gpu.stream_, DType::i32, size_t(2 * on_host.B * on_host.T)), a(on_host) {
      if (!a.documents) return;
      copy_to_device(gpu.stream_, documents.tensor().data, a.documents.data, a.documents.bytes());
      gpu.stream_.synchronize();
      a.documents.data = documents.tensor().data;
    }
  };
  Device device_;
  Stream stream_;
};

inline double norm(const Doubles& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return std::sqrt(sum);
}
// |x - y| / |y|, but |y| is at least `floor`: gradients of q and k vanish where each row sees one position
inline double error(const Doubles& x, const Doubles& y, double floor = 0) {
  Doubles d(x.size());
  for (size_t i = 0; i < x.size(); ++i) d[i] = x[i] - y[i];
  return norm(d) / std::max(norm(y), floor);
}
// The columns of q, k or v.
inline Doubles columns(const Doubles& dqkv, const Heads& h, int which) {
  Doubles out;
  for (size_t row = 0; row < dqkv.size(); row += size_t(h.width()))
    for (int64_t i = 0; i < (which == 0 ? h.H : h.G); ++i) {
      const size_t first = row + size_t(which == 0 ? h.q(i) : which == 1 ? h.k(i) : h.v(i));
      out.insert(out.end(), &dqkv[first], &dqkv[first] + h.D);
    }
  return out;
}

inline Attention shape(Heads h, int64_t B, int64_t T, int64_t window = 0) {
  return {.heads = h, .B = B, .T = T, .window = window, .scale = 1 / std::sqrt(double(h.D))};
}
inline std::string name(const Attention& a) {
  const Heads& h = a.heads;
  return concat("B ", a.B, " T ", a.T, " H ", h.H, " G ", h.G, " D ", h.D, h.interleaved ? " interleaved" : "",
                " window ", a.window, a.documents ? " documents" : "");
}

inline std::vector<Attention> shapes() {
  std::vector<Attention> all;
  for (int64_t D : {16, 32, 64, 80, 96, 128, 256}) {
    all.push_back(shape({.H = 4, .G = 2, .D = D}, 2, 333));
    all.push_back(shape({.H = 2, .G = 2, .D = D, .interleaved = true}, 1, 17));
  }
  for (int64_t D : {64, 128}) {
    for (int64_t T : {1, 17, 512, 1000}) all.push_back(shape({.H = 2, .G = 1, .D = D}, 1, T));
    all.push_back(shape({.H = 3, .G = 3, .D = D, .interleaved = true}, 3, 200));
    all.push_back(shape({.H = 8, .G = 1, .D = D}, 1, 300));
    all.push_back(shape({.H = 8, .G = 8, .D = D}, 1, 129));
    all.push_back(shape({.H = 8, .G = 2, .D = D}, 13, 261));   // more row tiles than multiprocessors
    all.push_back(shape({.H = 16, .G = 16, .D = D}, 4, 290));  // more key tiles
    all.push_back(shape({.H = 12, .G = 3, .D = D}, 1, 700));
  }
  all.push_back(shape({.H = 1, .G = 1, .D = 64}, 1, 1500));
  return all;
}
inline std::vector<Attention> windowed() {
  std::vector<Attention> all;
  for (int64_t D : {16, 64, 80, 128, 256})
    for (int64_t T : {50, 333}) all.push_back(shape({.H = 4, .G = 2, .D = D}, 2, T, 64));
  for (int64_t D : {64, 128}) {
    for (int64_t window : {1, 7, 200, 5000}) all.push_back(shape({.H = 2, .G = 1, .D = D}, 1, 512, window));
    all.push_back(shape({.H = 3, .G = 3, .D = D, .interleaved = true}, 2, 1000, 64));  // rows beyond T see no tile
    all.push_back(shape({.H = 16, .G = 2, .D = D}, 7, 390, 100));
    all.push_back(shape({.H = 18, .G = 18, .D = D, .interleaved = true}, 3, 301, 130));
  }
  return all;
}
// Sequences of packed documents, of lengths that are drawn anew for each sequence, up to `longest`; 0: no documents.
class Packed {
 public:
  Packed(const Attention& a, int64_t longest, uint64_t seed) : a_(a), documents_(size_t(2 * a.B * a.T)) {
    if (longest == 0) return;
    uint64_t draw = 0;
    for (int64_t b = 0; b < a.B; ++b)
      for (int64_t begin = 0, end; begin < a.T; begin = end) {
        end = std::min(a.T, begin + 1 + int64_t(uniform(seed, 0, draw++) * double(longest)));
        for (int64_t t = b * a.T + begin; t < b * a.T + end; ++t)
          documents_[size_t(t)] = int32_t(begin), documents_[size_t(a.B * a.T + t)] = int32_t(end);
      }
    a_.documents = {documents_.data(), DType::i32, {2, a.B, a.T}};
  }
  Packed(const Packed&) = delete;
  operator const Attention&() const { return a_; }

 private:
  Attention a_;
  std::vector<int32_t> documents_;
};
inline std::deque<Packed> packed() {
  std::deque<Packed> all;
  const auto add = [&](const Attention& a, int64_t longest) { all.emplace_back(a, longest, all.size()); };
  for (int64_t D : {16, 64, 80, 128, 256}) {
    add(shape({.H = 4, .G = 2, .D = D}, 2, 333), 100);
    add(shape({.H = 2, .G = 2, .D = D, .interleaved = true}, 3, 50), 10);
  }
  for (int64_t D : {64, 128}) {
    for (int64_t longest : {1, 3, 70, 600, 2000}) add(shape({.H = 2, .G = 1, .D = D}, 3, 1000), longest);
    add(shape({.H = 3, .G = 3, .D = D, .interleaved = true}, 3, 200, 64), 120);
    add(shape({.H = 12, .G = 3, .D = D}, 1, 700, 130), 300);
    add(shape({.H = 8, .G = 2, .D = D}, 13, 261), 150);
    add(shape({.H = 16, .G = 16, .D = D}, 4, 390), 400);
  }
  return all;
}

// bf16: o and the gradients are rounded to 2^-9 at the end, p and ds once inside.
inline void expect_near(const Result& got, const Result& want, const Attention& a, DType t) {
  SCOPED_TRACE(name(a));
  const bool vanish = norm(columns(want.dqkv, a.heads, 0)) == 0;
  const double floor = vanish ? norm(columns(want.dqkv, a.heads, 2)) : 0;
  const double o = error(got.o, want.o), lse = error(got.lse, want.lse);
  double d[3];
  for (int i = 0; i < 3; ++i) d[i] = error(columns(got.dqkv, a.heads, i), columns(want.dqkv, a.heads, i), floor);
  SCOPED_TRACE(concat("o ", o, " lse ", lse, " dq ", d[0], " dk ", d[1], " dv ", d[2]));
  const bool narrow = t == DType::bf16;
  EXPECT_LE(o, narrow ? 4e-3 : 1e-5);
  EXPECT_LE(lse, 2e-6);
  for (double e : d) EXPECT_LE(e, narrow ? 8e-3 : 1e-5);
}

class GpuAttention : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_available()) GTEST_SKIP() << "no GPU";
  }
  template <class Shapes = std::vector<Attention>>
  void check(Gpu& gpu, const Shapes& shapes, DType t, bool twice = true) {
    for (const Attention& a : shapes) {
      const size_t rows = size_t(a.B * a.T);
      const Doubles qkv = inputs(rows * size_t(a.heads.width()), 1, t),
                    d_o = inputs(rows * size_t(a.heads.H * a.heads.D), 2, t);
      const Result got = gpu.run(a, t, qkv, d_o);
      expect_near(got, Reference(a, qkv, d_o).result(), a, t);
      if (!twice) continue;
      const Result again = gpu.run(a, t, qkv, d_o);
      EXPECT_TRUE(got.o == again.o && got.lse == again.lse && got.dqkv == again.dqkv)
          << name(a) << " differs in a second run";
    }
  }
};

}  // namespace octet::gpu
