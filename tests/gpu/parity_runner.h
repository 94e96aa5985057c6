#pragma once
// Runs one case on an engine. Before each run outputs are filled with 0xFF, which is NaN in every format, so that
// elements left unwritten show; so are workspaces, and a margin around every tensor, which must be intact afterwards.
#include <bit>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "ops/ops.h"
#include "parity_cases.h"

namespace octet::BACKEND {

using namespace parity;

inline constexpr size_t kMargin = 512;
enum class Start { shifted, aligned };

inline std::vector<std::byte> stored(DType t, const std::vector<double>& v) {
  std::vector<std::byte> bytes(v.size() * size_of(t));
  visit<double, float, f16, bf16, int32_t, uint32_t>(t, [&]<class T>() {
    for (size_t i = 0; i < v.size(); ++i) {
      T x;
      if constexpr (sizeof(T) == 2) x = T(float(v[i]));
      else x = T(v[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &x, sizeof(T));
    }
  });
  return bytes;
}
inline double rounded(DType t, double x) { return t == DType::bf16 ? double(float(bf16(float(x)))) : double(float(x)); }

// Normal numbers at a tenth of the cost of drawing them: entries of a table of 65,536, chosen at random.
inline double drawn(uint64_t seed, uint64_t sequence, uint64_t index) {
  static const std::vector<double> table = [] {
    std::vector<double> v(65536);
    for (size_t i = 0; i < v.size(); ++i) v[i] = normal(1, 2, i);
    return v;
  }();
  return table[random_bits(seed, sequence, index) & 0xffff];
}

class Runner {
 public:
  Runner(Stream& s, const Case& k) : k(k), stream(s) {}
  ~Runner() {
    for (const Block& b : blocks_) device_free(stream.device(), b.base);
  }
  Runner(const Runner&) = delete;

  const Case& k;
  Stream& stream;

  bool has(int bit) const { return k.variant & bit; }
  DType plain() const { return k.reference ? DType::f64 : k.type; }
  DType wide() const { return k.reference ? DType::f64 : DType::f32; }
  DType as(DType t) const { return k.reference ? DType::f64 : t; }  // of parameters, gradients, moments

  Tensor place(DType t, Shape shape, const void* bytes, Start start = Start::shifted) {
    Tensor x{nullptr, t, shape};
    const size_t shift = k.shifted && start == Start::shifted ? size_of(t) : 0, all = x.bytes() + 2 * kMargin + shift;
    Block b{device_alloc(stream.device(), all), all, kMargin + shift, x.bytes()};
    blocks_.push_back(b);
    fill_byte(stream, b.base, 0xff, all);
    x.data = static_cast<char*>(b.base) + b.first;
    if (bytes && x.bytes()) copy_to_device(stream, x.data, bytes, x.bytes());
    stream.synchronize();
    return x;
  }
  Tensor workspace(DType t, Shape shape) { return place(t, shape, nullptr); }
  // Normal numbers that type `t` can hold; in a reference run they are stored in f64.
  Tensor input(DType t, Shape shape, double scale = 1) {
    std::vector<double> v(static_cast<size_t>(shape.numel()));
    const uint64_t sequence = ++sequences_;
    for (size_t i = 0; i < v.size(); ++i) v[i] = rounded(t, scale * drawn(k.seed, sequence, i));
    return place(as(t), shape, stored(as(t), v).data());
  }
  Tensor input(Shape shape, double scale = 1) { return input(k.type, shape, scale); }
  Tensor positive(DType t, Shape shape, double scale = 1) {
    std::vector<double> v(static_cast<size_t>(shape.numel()));
    const uint64_t sequence = ++sequences_;
    for (size_t i = 0; i < v.size(); ++i) v[i] = rounded(t, scale * std::abs(drawn(k.seed, sequence, i)));
    return place(as(t), shape, stored(as(t), v).data());
  }
  const float* loss_scale() {
    const float scale = 24;
    return place(DType::f32, {1}, &scale).ptr<float>();
  }
  Tensor ints(const std::vector<int32_t>& v) { return place(DType::i32, {int64_t(v.size())}, v.data()); }
  int64_t below(int64_t n, uint64_t i) const { return int64_t(random_bits(k.seed, 99, i) % uint64_t(n)); }

  Tensor report(const char* name, Tensor t, Compare how = Compare::close) {
    outputs_.push_back({name, t, how});
    return t;
  }
  Tensor output(const char* name, DType t, Shape shape, Compare how = Compare::close) {
    return report(name, workspace(t, shape), how);
  }
  // An operand with the forms of the variant; `exact`: the values that it gets are given, not computed.
  Operand operand(int64_t n, int64_t c, bool exact = false) {
    Operand y;
    y.slot.format = has(kE5m2) ? DType::e5m2 : DType::e4m3;
    const float scale[4] = {k.d ? std::bit_cast<float>(uint32_t(k.d)) : has(kE5m2) ? 9001.f : 61.f, 0, 0, 0};
    const uint32_t start = std::bit_cast<uint32_t>(0.5f);  // the maximum goes on from what is there
    y.slot.scale = place(DType::f32, {4}, scale).ptr<float>();
    if (!has(kUnmeasured))
      y.slot.amax =
          report("amax", place(DType::u32, {1}, &start), exact ? Compare::bits : Compare::scalar).ptr<uint32_t>();
    if (has(kQ | kQt)) y.scale_inv = output("scale_inv", DType::f32, {1}, Compare::bits).ptr<float>();
    if (has(kPlain)) y.plain = output("plain", plain(), {n, c}, exact ? Compare::bits : Compare::close);
    if (has(kQ)) y.q = output("q", y.slot.format, {n, c}, exact ? Compare::bits : Compare::codes);
    if (has(kQt)) y.q_t = output("q_t", y.slot.format, {c, n}, exact ? Compare::bits : Compare::codes);
    return y;
  }

  std::vector<Output> finish() {
    std::vector<Output> home;
    stream.synchronize();
    for (const Block& b : blocks_) {
      std::vector<uint8_t> bytes(b.all);
      copy_to_host(stream, bytes.data(), b.base, b.all);
      stream.synchronize();
      for (size_t i = 0; i < b.all; ++i)
        CHECK(bytes[i] == 0xff || (i >= b.first && i < b.first + b.size), "byte ", int64_t(i) - int64_t(b.first),
              " of a tensor of ", b.size, " bytes was written: ", k);
    }
    for (const Kept& o : outputs_) {
      Output out{o.name, o.t.dtype, o.compare, std::vector<std::byte>(o.t.bytes())};
      if (o.t.bytes()) copy_to_host(stream, out.bytes.data(), o.t.data, o.t.bytes());
      stream.synchronize();
      home.push_back(std::move(out));
    }
    return home;
  }

 private:
  struct Block {
    void* base;
    size_t all, first, size;
  };
  struct Kept {
    std::string name;
    Tensor t;
    Compare compare;
  };
  std::vector<Block> blocks_;
  std::vector<Kept> outputs_;
  uint64_t sequences_ = 0;
};

}  // namespace octet::BACKEND
