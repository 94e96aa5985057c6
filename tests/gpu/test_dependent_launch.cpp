// Programmatic dependent launch (ops/gpu/launch.cuh) does not change a bit: random programs over a few small tensors,
// in which each operation reads what others have just written and overwrites what others have just read. They run
// behind a long matrix product, so that all launches are queued and overlap as much as they can; as launched, and as a
// CUDA graph; and are compared with the same program with a host wait after every operation.
#define BACKEND gpu
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "gpu/machine.h"
#include "ops/decode.h"
#include "ops/workspace.h"

namespace octet::gpu {
namespace {

constexpr int64_t kBuffers = 6, kVocabulary = 64;

class Program {
 public:
  Program(Machine& m, int64_t N, int64_t C, uint64_t seed) : m_(m), s_(m.stream), N_(N), C_(C), seed_(seed) {
    const Target& t = s_.target();
    for (int64_t i = 0; i < 2 * kBuffers; ++i) x_.push_back(drawn({N, C}, 1, uint64_t(i)));
    gated_ = take(DType::bf16, {N, 2 * C});
    q_ = take(DType::e4m3, {N, C}), q_t_ = take(DType::e4m3, {C, N}), scales_ = take(DType::f32, {12});
    rstd_ = take(DType::f32, {N}), mean_ = take(DType::f32, {N}), losses_ = take(DType::f32, {N});
    sums_ = take(DType::f32, {2, C}), total_ = take(DType::f64, {1}), dw_ = take(DType::f32, {kVocabulary, C});
    partial_ = m.tensor(DType::f32, {2 * partial_rows(t), C}), squares_ = m.tensor(DType::f64, {partial_sums(t)});
    gain_ = drawn({C}, 1, 100), w_ = drawn({2 * C, C}, 1 / std::sqrt(double(C)), 101);
    std::vector<int32_t> tokens(static_cast<size_t>(N)), order(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(random_bits(seed, 9, i) % kVocabulary);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](int32_t n) { return tokens[size_t(n)]; });
    tokens_ = ints(tokens), order_ = ints(order);
    std::vector<double> angles;
    for (int64_t i = 0; i < N * 16; ++i) angles.push_back(std::cos(double(i))), angles.push_back(std::sin(double(i)));
    table_ = m.upload(DType::f32, {N, 16, 2}, angles);
    large_ = m.tensor(DType::bf16, {8192, 8192}), of_large_ = m.tensor(DType::bf16, {8192, 8192});
    fill_zero(s_, large_);
  }

  // Runs the program; returns the bytes of everything it writes. wait: for the device, after each operation.
  std::vector<char> run(bool wait) {
    start();
    operations(wait);
    return bytes();
  }
  std::vector<char> replay() {  // an ordinary run, the captured one, and a replay
    Recording recording(s_);
    for (int i = 0; i < 3; ++i) {
      start();
      recording.run([&] { operations(false); });
    }
    return bytes();
  }

 private:
  Tensor take(DType t, Shape shape) { return written_.emplace_back(m_.tensor(t, shape)); }
  Tensor drawn(Shape shape, double std, uint64_t stream) {
    const Tensor t = m_.tensor(DType::bf16, shape);
    init_normal(s_, t, 0, std, seed_, stream, 0);
    return t;
  }
  Tensor ints(const std::vector<int32_t>& v) {
    const Tensor t = m_.tensor(DType::i32, {int64_t(v.size())});
    copy_to_device(s_, t.data, v.data(), t.bytes());
    s_.synchronize();
    return t;
  }
  void start() {
    for (const Tensor& t : written_) fill_zero(s_, t);
    for (size_t i = 0; i < kBuffers; ++i) copy(s_, x_[i], x_[i + kBuffers]);
    init_normal(s_, scales_, 1, 0, 0, 0, 0);
    s_.synchronize();
    gemm(s_, {.d = of_large_, .a = {large_}, .b = {large_}});  // a millisecond or more
  }
  std::vector<char> bytes() {
    std::vector<char> all;
    std::vector<Tensor> written(x_.begin(), x_.begin() + kBuffers);
    written.insert(written.end(), written_.begin(), written_.end());
    for (const Tensor& t : written) {
      all.resize(all.size() + t.bytes());
      copy_to_host(s_, &all[all.size() - t.bytes()], t.data, t.bytes());
      s_.synchronize();
    }
    return all;
  }
  void operations(bool wait) {
    for (uint64_t i = 0; i < 300; ++i) {
      const uint64_t r = random_bits(seed_, 1, i);
      const uint64_t y = r >> 8 & 7, first = (r >> 11) % kBuffers, second = (r >> 20) % kBuffers;
      one(int(r % 20), x_[y % kBuffers], x_[(y + 1 + first % (kBuffers - 1)) % kBuffers],
          x_[(y + 1 + second % (kBuffers - 1)) % kBuffers], i);
      if (wait) s_.synchronize();
    }
  }
  Operand forms(Tensor plain, bool measured) {
    float* p = scales_.ptr<float>();
    return {plain, q_, {}, p + 8, {p, measured ? reinterpret_cast<uint32_t*>(p + 4) : nullptr, DType::e4m3}};
  }
  void one(int which, Tensor y, Tensor a, Tensor b, uint64_t i);

  Machine& m_;
  Stream& s_;
  int64_t N_, C_;
  uint64_t seed_;
  std::vector<Tensor> x_, written_;
  Tensor gated_, q_, q_t_, scales_, rstd_, mean_, losses_, sums_, total_, dw_, partial_, squares_, gain_, w_, tokens_,
      order_, table_, large_, of_large_;
};

// y is neither a nor b.
void Program::one(int which, Tensor y, Tensor a, Tensor b, uint64_t i) {
  const Tensor w = w_.row_range(0, C_), norm_sums = sums_.part(0, {C_}), other_sums = sums_.part(C_, {C_});
  const Rope rope{.table = table_, .heads = {.H = C_ / 64 - 2, .G = 1, .D = 64}, .T = N_};
  float* const p = scales_.ptr<float>();
  switch (which) {
    case 0:
      return add(s_, y, a, b);
    case 1:
      return rmsnorm_forward(s_, forms(y, true), rstd_, a, gain_, 1e-5);
    case 2:
      return rmsnorm_backward(s_, {y, norm_sums, a, b, gain_, rstd_, partial_});
    case 3:
      return layernorm_forward(s_, {forms(y, false), mean_, rstd_, a, gain_, gain_, 1e-5});
    case 4:
      return layernorm_backward(s_, {y, norm_sums, other_sums, a, b, gain_, mean_, rstd_, partial_});
    case 5:
      return quantize(s_, {{}, q_, q_t_, p + 8, {p, nullptr, DType::e4m3}}, a);
    case 6:
      return transpose(s_, q_t_, q_);
    case 7:
      return gemm(s_, {.d = gated_, .a = {a}, .b = {w_}, .b_ready = i % 2 == 0});
    case 8:
      return swiglu_forward(s_, forms(y, true), gated_);
    case 9:
      return swiglu_backward(s_, {.plain = gated_}, a, gated_);
    case 10:
      return gelu_forward(s_, {.plain = y}, a, Gelu::tanh);
    case 11:
      return rope_forward(s_, y, rope);
    case 12:
      return rope_backward(s_, {y, q_, {}, p + 8, {p, nullptr, DType::e4m3}}, a, rope);
    case 13:
      return column_sum(s_, norm_sums, a, partial_);
    case 14:
      return sum_of_squares(s_, total_, a, squares_);
    case 15:  // the scale of what was measured, as a first cast has it
      current_scale(s_, p, reinterpret_cast<const uint32_t*>(p + 4), 448, false);
      return fill_byte(s_, p + 4, 0, 4);
    case 16:
      return embedding_backward(s_, dw_, a, tokens_, order_);
    case 17:
      return gemm(s_, {.d = y, .a = {a}, .b = {w}, .residual = b});
    case 18:
      if (N_ > 16) return cross_entropy(s_, losses_, y, tokens_, C_, 0.5, Backward::yes);
      return normed_product(s_,
                            {.y = y, .x = a, .norm = gain_, .w = w, .normed = gated_.part(0, {N_, C_}), .rstd = rstd_});
    default:
      return copy(s_, y, x_[kBuffers + i % kBuffers]);
  }
}

TEST(DependentLaunch, GivesTheBitsOfSeparateLaunches) {
  if (!device_available()) GTEST_SKIP() << "no GPU";
  Machine m;
  for (const auto& [N, C] : {std::pair{16, 256}, {16, 1024}, {640, 512}, {1000, 2048}})
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      Program program(m, N, C, seed * 1000);
      const std::vector<char> apart = program.run(true), close = program.run(false), graph = program.replay();
      size_t differ = 0;
      for (size_t i = 0; i < apart.size(); ++i) differ += apart[i] != close[i] || apart[i] != graph[i];
      EXPECT_EQ(differ, 0u) << "N " << N << ", C " << C << ", seed " << seed << ", " << apart.size() << " bytes";
    }
}

}  // namespace
}  // namespace octet::gpu
