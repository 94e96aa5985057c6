// The GPU computes what the CPU computes: every op outside products and attention, on fresh random inputs.
//   close   1 - 2<x,y>/(|x|^2+|y|^2) under 1e-10 (fp32 outputs) or 1e-5 (bf16); and the GPU's error against the same
//           op in f64 is at most twice the CPU's
//   codes   FP8 of computed values: a last bit may cross a tie in less than 1e-3 of them
//   bits    equal: FP8 of given values, transposes, copies, scales
// And: two runs of the GPU give the same bits; nothing is left unwritten; nothing is written outside.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/rng.h"
#include "parity_cases.h"

using namespace octet;
using namespace octet::parity;

namespace {

std::vector<double> values_of(const Output& o) {
  std::vector<double> v(o.bytes.size() / size_of(o.dtype));
  visit<double, float, f16, bf16, uint32_t>(o.dtype, [&]<class T>() {
    for (size_t i = 0; i < v.size(); ++i) {
      T x;
      std::memcpy(&x, o.bytes.data() + i * sizeof(T), sizeof(T));
      if constexpr (sizeof(T) == 2) v[i] = double(float(x));
      else v[i] = double(x);
    }
  });
  return v;
}
// The norm that an output counts as having at least, where it may cancel to nearly zero while its terms have size 1: a
// mean, a log-sum, and the gradient p - 1 of a single row whose target is nearly certain.
double least_norm(const Output& o) {
  if (o.name == "mean" || o.name == "lse") return std::sqrt(double(o.bytes.size() / size_of(o.dtype)));
  return o.name == "logits" ? 0.02 : 0;
}
// |x - y|^2 / (|x|^2 + |y|^2) = 1 - 2 x.y / (|x|^2 + |y|^2)
double distance(const std::vector<double>& x, const std::vector<double>& y, double least) {
  double error = 0, norms = 0;
  for (size_t i = 0; i < x.size(); ++i) error += (x[i] - y[i]) * (x[i] - y[i]), norms += x[i] * x[i] + y[i] * y[i];
  norms = std::max(norms, 2 * least * least);
  return norms == 0 ? 0 : error / norms;
}
double relative_error(const std::vector<double>& x, const std::vector<double>& truth, double least) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) error += (x[i] - truth[i]) * (x[i] - truth[i]), norm += truth[i] * truth[i];
  norm = std::max(norm, least * least);
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
}
size_t differing(const Output& a, const Output& b, size_t& first) {
  const size_t size = size_of(a.dtype);
  size_t count = 0;
  for (size_t i = 0; i < a.bytes.size(); i += size)
    if (std::memcmp(a.bytes.data() + i, b.bytes.data() + i, size) != 0 && count++ == 0) first = i / size;
  return count;
}
float scalar_of(const Output& o) {
  float f;
  std::memcpy(&f, o.bytes.data(), sizeof f);
  return f;
}

void expect_same(const Output& a, const Output& b, const std::string& where) {
  ASSERT_EQ(a.bytes.size(), b.bytes.size()) << where;
  size_t first = 0;
  const size_t count = differing(a, b, first);
  if (a.compare == Compare::bits) {
    EXPECT_EQ(count, 0u) << where << ", first at " << first;
  } else if (a.compare == Compare::codes) {
    EXPECT_LT(double(count), 1 + 1e-3 * double(a.bytes.size())) << where << ", first at " << first;
    for (std::byte code : b.bytes) ASSERT_NE(code, std::byte{0xff}) << where << " was not written";
  } else if (a.compare == Compare::scalar) {
    EXPECT_NEAR(scalar_of(b), scalar_of(a), 1e-5 * scalar_of(a)) << where;
  } else {
    const bool in_bf16 = a.dtype == DType::bf16 || a.compare == Compare::rounded;
    EXPECT_LT(distance(values_of(a), values_of(b), least_norm(a)), in_bf16 ? 1e-5 : 1e-10) << where;
  }
}

class Parity : public testing::Test {
 protected:
  void SetUp() override {
    gpu_ = gpu::parity_engine();
    if (!gpu_) GTEST_SKIP() << "no GPU";
    cpu_ = cpu::parity_engine();
    const char* given = std::getenv("OCTET_TEST_SEED");
    seed_ = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("OCTET_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed_));
  }
  bool has_f64(const Case& k) const {
    for (const char* op : {"quantize_bits", "transpose", "count_codes", "convert", "init_normal", "sum",
                           "finish_gradients", "update_scales", "inherit_scales", "current_scale", "adamw"})
      if (k.op == op) return false;
    return true;
  }
  enum class Reference { no, yes };
  void check(Case k, Reference reference = Reference::yes) {
    k.seed = mix(seed_ + ++cases_) >> 1;
    const auto a = cpu_->run(k), b = gpu_->run(k), again = gpu_->run(k);
    ASSERT_EQ(a.size(), b.size()) << k;
    for (size_t i = 0; i < a.size(); ++i) {
      const std::string where = concat(k, ": ", a[i].name);
      expect_same(a[i], b[i], where);
      EXPECT_EQ(b[i].bytes, again[i].bytes) << where << " differs from run to run";
    }
    if (reference == Reference::no || !has_f64(k)) return;
    k.reference = true;
    const auto truth = cpu_->run(k);
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i].compare != Compare::close) continue;
      const auto exact = values_of(truth[i]);
      const double of_cpu = relative_error(values_of(a[i]), exact, least_norm(a[i]));
      const double of_gpu = relative_error(values_of(b[i]), exact, least_norm(a[i]));
      EXPECT_LE(of_gpu, 2 * of_cpu + 5e-7)
          << concat(k, ": ", a[i].name) << ", error against f64; the cpu's is " << of_cpu;
    }
  }
  // Each of the shapes, in both types, and once off the alignment of vectors.
  void check_all(const std::string& op, const std::vector<std::array<int64_t, 3>>& shapes,
                 const std::vector<int>& variants) {
    constexpr int64_t kLarge = 100000;  // of these a third of the variants will do, and no f64
    for (DType type : {DType::f32, DType::bf16}) {
      for (const auto& [n, c, d] : shapes) {
        for (size_t i = 0; i < variants.size(); ++i) {
          const Case k{.op = op, .type = type, .n = n, .c = c, .d = d, .variant = variants[i]};
          const bool large = n * c > kLarge;
          if (large && i % 3 != 1 && i + 1 != variants.size()) continue;
          check(k, large ? Reference::no : Reference::yes);
          if (large) continue;
          Case off = k;
          off.shifted = true;
          check(off);
        }
      }
    }
  }

  std::unique_ptr<Engine> cpu_, gpu_;
  uint64_t seed_ = 0, cases_ = 0;
};

const std::vector<int> kForms{kPlain,
                              kQ,
                              kQt,
                              kQ | kQt,
                              kPlain | kQ | kQt,
                              kPlain | kQ | kE5m2,
                              kQ | kQt | kE5m2,
                              kPlain | kUnmeasured,
                              kPlain | kQ | kQt | kUnmeasured,
                              0};
const std::vector<std::array<int64_t, 3>> kShapes{{1, 16, 0},     {17, 80, 0},   {333, 2048, 0},
                                                  {17, 4112, 0},  {333, 100, 0}, {144, 272, 0},
                                                  {256, 5632, 0}, {1, 1, 0},     {136, 72, 0}};

TEST_F(Parity, QuantizeOfGivenValuesIsExact) {
  check_all("quantize", kShapes, kForms);
  for (const auto& [n, c] : {std::pair<int64_t, int64_t>{16, 16}, {48, 80}, {4096, 11008}, {4112, 4096}})
    check({.op = "quantize", .type = DType::bf16, .n = n, .c = c, .variant = kQ | kQt});
}
TEST_F(Parity, EveryBf16AndAnyBitsOfFp32HaveTheCodesOfTheCpu) {
  for (float scale : {1.f, 61.37f, 0x1p-9f})
    for (int variant : {kPlain | kQ | kQt, kQ | kQt | kE5m2, kQ, kQt | kE5m2})
      for (DType type : {DType::bf16, DType::f32})
        for (int64_t c : {256, 255}) {
          const int64_t bits = std::bit_cast<uint32_t>(scale);
          check(
              {.op = "quantize_bits", .type = type, .n = c == 256 ? 256 : 258, .c = c, .d = bits, .variant = variant});
        }
}
TEST_F(Parity, Transpose) {
  for (const auto& [n, c, d] : kShapes)
    for (bool shifted : {false, true}) check({.op = "transpose", .n = n, .c = c, .shifted = shifted});
}
TEST_F(Parity, CountCodes) {
  for (const auto& [n, c, d] : kShapes)
    for (int variant : {0, kE5m2})
      for (bool shifted : {false, true})
        check({.op = "count_codes", .n = n, .c = c, .variant = variant, .shifted = shifted});
}
TEST_F(Parity, ConvertAndAdd) {
  for (int64_t n : {1, 8, 17, 4096, 100003})
    for (bool shifted : {false, true}) {
      for (int64_t to = 0; to < 3; ++to)
        for (int64_t from = 0; from < 3; ++from)
          check({.op = "convert", .n = n, .d = 4 * to + from, .shifted = shifted});
      for (DType type : {DType::f32, DType::bf16})
        for (int variant : {0, kC, kA, kA | kC, kB})
          check({.op = "add", .type = type, .n = n, .variant = variant, .shifted = shifted});
    }
}
TEST_F(Parity, InitNormal) {
  for (DType type : {DType::f32, DType::bf16})
    for (int variant : {0, kA}) check({.op = "init_normal", .type = type, .n = 100003, .variant = variant});
}

// More rows than a wave of warps takes, too: these loop, with the next row on its way.
const std::vector<std::array<int64_t, 3>> kManyShortRows{{6000, 16, 0}, {2700, 776, 0}};
TEST_F(Parity, RmsnormForward) {
  check_all("rmsnorm_forward", kShapes, kForms);
  check_all("rmsnorm_forward", kManyShortRows, kForms);
}
TEST_F(Parity, LayernormForward) {
  check_all("layernorm_forward", kShapes, kForms);
  check_all("layernorm_forward", kManyShortRows, kForms);
}
const std::vector<std::array<int64_t, 3>> kNormShapes{{1, 16, 0},     {17, 80, 0},    {333, 2048, 0}, {700, 4096, 0},
                                                      {333, 4112, 0}, {333, 6144, 0}, {333, 8192, 0}, {333, 100, 0},
                                                      {17, 16400, 0}, {1000, 64, 0},  {5, 1, 0}};
TEST_F(Parity, RmsnormBackward) { check_all("rmsnorm_backward", kNormShapes, {0, kA}); }
TEST_F(Parity, LayernormBackward) { check_all("layernorm_backward", kNormShapes, {0, kA}); }

TEST_F(Parity, Embedding) {
  check_all("embedding_forward", {{1, 16, 50}, {333, 80, 1000}, {17, 4112, 1000}, {333, 100, 7}}, {0});
  check_all("embedding_backward",
            {{1, 16, 50},
             {333, 80, 1000},
             {1000, 272, 40},
             {17, 4112, 1000},
             {333, 100, 7},
             {2000, 264, 1000},
             {100, 768, 20},
             {100, 776, 7}},
            {0, kA, kB, kA | kB});
}
TEST_F(Parity, Rope) {
  std::vector<std::array<int64_t, 3>> shapes;
  for (int64_t n : {1, 17, 48, 77, 144})
    for (int64_t heads = 0; heads < 10; ++heads) shapes.push_back({n, heads, 0});
  check_all("rope_forward", shapes, {0, kB});
  std::vector<int> variants = kForms;
  for (int more : {kA | kUnmeasured, kA | kQ | kQt, kA | kQt | kE5m2, kB | kPlain, kA | kB | kQ | kQt, kC | kPlain})
    variants.push_back(more);
  check_all("rope_backward", shapes, variants);
}
TEST_F(Parity, Swiglu) {
  check_all("swiglu_forward", kShapes, kForms);
  check_all("swiglu_backward", kShapes, kForms);
}
TEST_F(Parity, Gelu) {
  std::vector<int> variants = kForms;
  for (int form : kForms) variants.push_back(form | kA);
  check_all("gelu_forward", kShapes, variants);
  check_all("gelu_backward", kShapes, variants);
}

TEST_F(Parity, CrossEntropy) {
  check_all("cross_entropy",
            {{17, 32000, 32000},
             {17, 50264, 50257},
             {6, 50257, 50257},
             {5, 128256, 128256},
             {1, 16, 13},
             {333, 100, 90},
             {64, 512, 500},
             {4, 1, 1}},
            {0, kA, kB});
}
TEST_F(Parity, Sums) {
  for (int64_t n : {1, 17, 4096, 100003}) {
    check({.op = "sum", .n = n});
    for (DType type : {DType::f32, DType::bf16})
      for (bool shifted : {false, true})
        check({.op = "sum_of_squares", .type = type, .n = n * 16 + 3, .shifted = shifted});
  }
  check_all("column_sum", {{1, 16, 0}, {17, 80, 0}, {333, 2048, 0}, {20000, 264, 0}, {333, 100, 0}, {3, 1, 0}},
            {0, kA});
}

TEST_F(Parity, MoeRouting) {
  const std::vector<std::array<int64_t, 3>> shapes{{1, 4, 2},    {77, 8, 2},   {300, 8, 1},
                                                   {1000, 5, 5}, {40, 200, 6}, {3, 1, 1}};
  check_all("moe_route", shapes, {0, kA});
  check_all("moe_route_backward", shapes, {0, kA, kB, kC});
  for (const auto& [n, c, d] :
       {std::array<int64_t, 3>{1, 4, 2}, {77, 8, 2}, {20000, 8, 2}, {9000, 3, 1}, {40, 1000, 6}, {3, 1, 1}})
    for (int variant : {0, kA + 0}) check({.op = "moe_sort", .n = n, .c = c, .d = d, .variant = variant});
  for (const auto& [n, c, d] :
       {std::array<int64_t, 3>{1, 2, 1}, {16, 3, 1}, {33, 4, 1}, {129, 8, 1}, {500, 8, 2}, {9000, 16, 1}, {9000, 9, 3}})
    for (int variant : {kD + 0, kA | kD}) check({.op = "moe_sort", .n = n, .c = c, .d = d, .variant = variant});
}
TEST_F(Parity, MoeRows) {
  const std::vector<std::array<int64_t, 3>> shapes{
      {1, 16, 2}, {77, 272, 2}, {300, 100, 1}, {33, 4112, 5}, {600, 4096, 2}};
  check_all("moe_gather", shapes, {0, kA, kD, kA | kD});
  check_all("moe_combine", shapes, {0, kA, kB, kC, kA | kC, kD, kA | kC | kD});
  check_all("moe_combine_backward", shapes, {0, kA, kD, kA | kD});
}
TEST_F(Parity, MoeLosses) {
  check_all("moe_losses", {{1, 4, 2}, {15, 3, 1}, {77, 8, 2}, {20000, 8, 32}, {300, 1000, 1}, {17, 300, 5}},
            {0, kA, kB});
}
TEST_F(Parity, MoeJitter) { check_all("moe_jitter", {{1, 16, 0}, {77, 272, 0}}, {0}); }

TEST_F(Parity, Adamw) {
  for (int types = 0; types < 8; ++types)
    for (int more : {0, int(kD), int(kQ)}) {
      const int variant = (types & 1 ? kA : 0) | (types & 2 ? kB : 0) | (types & 4 ? kC : 0) | more;
      for (int64_t n : {1, 17, 5000})
        for (bool shifted : {false, true})
          check({.op = "adamw", .n = n, .d = 5, .variant = variant, .shifted = shifted});
    }
  check({.op = "adamw", .n = 40, .d = 75, .variant = 0});
  check({.op = "adamw", .n = 3000000, .d = 2, .variant = 0});
}
TEST_F(Parity, FinishGradients) {
  for (int64_t d = 0; d < 9; ++d) check({.op = "finish_gradients", .d = d});
}
TEST_F(Parity, Scaling) {
  for (int64_t L : {1, 2, 4, 32, 33, 1024})
    for (int64_t S : {1, 45, 384})
      for (int flags = 0; flags < 16; ++flags)
        for (int64_t d : {0, 1}) check({.op = "update_scales", .n = L, .c = S, .d = d, .variant = flags * kA});
  for (int64_t L : {1, 2, 17, 1024})
    for (const auto& [S, each] : {std::pair<int64_t, int64_t>{1, 1}, {15, 1}, {17, 2}, {45, 8}, {1000, 3}, {384, 128}})
      for (int variant : {0, kA + 0, kB + 0})
        for (bool shifted : {false, true})
          check({.op = "inherit_scales", .n = L, .c = S, .d = each, .variant = variant, .shifted = shifted});
  for (int64_t d = 0; d < 8; ++d)
    for (int variant : {0, kC + 0}) check({.op = "current_scale", .d = d, .variant = variant});
}

}  // namespace
