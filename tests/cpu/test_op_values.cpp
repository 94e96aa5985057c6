// Each forward is its formula in ops.h, evaluated plainly.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/lab.h"
#include "ops/formulas.h"
#include "ops/moe.h"

namespace octet::BACKEND {
namespace {

constexpr DType kF64 = DType::f64;

void expect_near(Tensor got, const std::vector<double>& want, double tolerance = 1e-13) {
  const auto v = values(got);
  ASSERT_EQ(v.size(), want.size());
  for (size_t i = 0; i < v.size(); ++i) EXPECT_NEAR(v[i], want[i], tolerance) << i;
}

TEST(OpValues, NormsAreTheirFormulas) {
  Lab lab;
  const int64_t N = 3, C = 21;
  const Tensor x = lab.normal(kF64, {N, C}), w = lab.normal(kF64, {C}), b = lab.normal(kF64, {C});
  const Tensor y = lab.empty(kF64, {N, C}), z = lab.empty(kF64, {N, C});
  const Tensor rstd = lab.empty(kF64, {N}), mean = lab.empty(kF64, {N}), rstd2 = lab.empty(kF64, {N});
  rmsnorm_forward(lab.stream(), {.plain = y}, rstd, x, w, 0.1);
  layernorm_forward(lab.stream(), {{.plain = z}, mean, rstd2, x, w, b, 0.1});
  std::vector<double> rms, layer;
  for (int64_t n = 0; n < N; ++n) {
    const double* row = x.ptr<double>() + n * C;
    double m = 0, squares = 0, variance = 0;
    for (int64_t c = 0; c < C; ++c) m += row[c] / double(C), squares += row[c] * row[c] / double(C);
    for (int64_t c = 0; c < C; ++c) variance += (row[c] - m) * (row[c] - m) / double(C);
    for (int64_t c = 0; c < C; ++c) {
      rms.push_back(row[c] / std::sqrt(squares + 0.1) * w.ptr<double>()[c]);
      layer.push_back((row[c] - m) / std::sqrt(variance + 0.1) * w.ptr<double>()[c] + b.ptr<double>()[c]);
    }
    EXPECT_NEAR(rstd.ptr<double>()[n], 1 / std::sqrt(squares + 0.1), 1e-14);
    EXPECT_NEAR(mean.ptr<double>()[n], m, 1e-14);
  }
  expect_near(y, rms);
  expect_near(z, layer);
}

TEST(OpValues, RopeRotatesQueriesAndKeysByTheirPosition) {
  Lab lab;
  const Heads heads{.H = 2, .G = 1, .D = 6};
  const int64_t N = 4, W = heads.width(), R = 4;
  const Tensor table = rope_table(lab, kF64, 9, R), x = lab.normal(kF64, {N, W});
  auto want = values(x);
  for (int64_t n = 0; n < N; ++n)
    for (int64_t head = 0; head < 3; ++head)  // two of q, one of k
      for (int64_t i = 0; i < R / 2; ++i) {
        const double angle = double(n % 2 + 5) * std::pow(10000, -2.0 * double(i) / double(R));
        double &a = want[size_t(n * W + head * 6 + i)], &b = want[size_t(n * W + head * 6 + i + R / 2)];
        const double a0 = a, b0 = b;
        a = a0 * std::cos(angle) - b0 * std::sin(angle);
        b = b0 * std::cos(angle) + a0 * std::sin(angle);
      }
  rope_forward(lab.stream(), x, {table, heads, 2, 5});
  expect_near(x, want);
}

// One query row after the other, one key after the other.
void expect_attention(Heads heads, int64_t T, int64_t window) {
  Lab lab;
  const Attention a{heads, 2, T, window, 0.6};
  const int64_t N = a.B * T, W = heads.width(), D = heads.D, O = heads.H * D;
  const Tensor x = lab.normal(kF64, {N, W}), o = lab.empty(kF64, {N, O}), lse = lab.empty(kF64, {a.B, heads.H, T});
  attention_forward(lab.stream(), o, lse, x, a, {});
  std::vector<double> want(size_t(N * O)), want_lse;
  for (int64_t b = 0; b < a.B; ++b)
    for (int64_t h = 0; h < heads.H; ++h)
      for (int64_t t = 0; t < T; ++t) {
        const auto at = [&](int64_t row, int64_t offset) { return x.ptr<double>() + (b * T + row) * W + offset; };
        const int64_t g = h / (heads.H / heads.G), first = window ? std::max<int64_t>(0, t - window + 1) : 0;
        double sum = 0;
        std::vector<double> out(size_t(D), 0.0);
        for (int64_t j = first; j <= t; ++j) {
          double score = 0;
          for (int64_t d = 0; d < D; ++d) score += at(t, heads.q(h))[d] * at(j, heads.k(g))[d] * a.scale;
          sum += std::exp(score);
          for (int64_t d = 0; d < D; ++d) out[size_t(d)] += std::exp(score) * at(j, heads.v(g))[d];
        }
        want_lse.push_back(std::log(sum));
        for (int64_t d = 0; d < D; ++d) want[size_t((b * T + t) * O + h * D + d)] = out[size_t(d)] / sum;
      }
  expect_near(o, want, 1e-12);
  expect_near(lse, want_lse, 1e-12);
}
TEST(OpValues, AttentionIsItsFormula) {
  expect_attention({.H = 4, .G = 2, .D = 5}, 131, 0);
  expect_attention({.H = 4, .G = 1, .D = 8}, 131, 65);
  expect_attention({.H = 2, .G = 2, .D = 3, .interleaved = true}, 70, 3);
}

TEST(OpValues, AttentionSurvivesScoresBeyondTheRangeOfExp) {
  Lab lab;
  const Attention a{{.H = 1, .G = 1, .D = 4}, 1, 80, 0, 100};
  const Tensor x = lab.normal(DType::f32, {80, 12}, 5), o = lab.empty(DType::f32, {80, 4});
  attention_forward(lab.stream(), o, lab.empty(DType::f32, {1, 1, 80}), x, a, {});
  for (const double v : values(o)) EXPECT_TRUE(std::isfinite(v));
}

TEST(OpValues, ActivationsAreTheirFormulas) {
  Lab lab;
  const int64_t N = 2, F = 9;
  const Tensor gu = lab.normal(kF64, {N, 2 * F}, 3), y = lab.empty(kF64, {N, F});
  const Tensor exact = lab.empty(kF64, {N, 2 * F}), approximate = lab.empty(kF64, {N, 2 * F});
  swiglu_forward(lab.stream(), {.plain = y}, gu);
  gelu_forward(lab.stream(), {.plain = exact}, gu, Gelu::exact);
  gelu_forward(lab.stream(), {.plain = approximate}, gu, Gelu::tanh);
  std::vector<double> swiglu, erf, tanh;
  for (int64_t n = 0; n < N; ++n)
    for (int64_t f = 0; f < F; ++f) {
      const double g = gu.ptr<double>()[n * 2 * F + f], u = gu.ptr<double>()[n * 2 * F + F + f];
      swiglu.push_back(g / (1 + std::exp(-g)) * u);
    }
  for (const double x : values(gu)) {
    erf.push_back(x * 0.5 * (1 + std::erf(x / std::sqrt(2.0))));
    tanh.push_back(0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))));
  }
  expect_near(y, swiglu);
  expect_near(exact, erf);
  expect_near(approximate, tanh);
}

// The cpu engine takes vectorising forms of what formulas.h says; in fp32 they agree to rounding, far tails included.
TEST(OpValues, Fp32ActivationsAreTheSharedFormulas) {
  Lab lab;
  std::vector<float> x;
  for (int i = -3000; i <= 3000; ++i) x.push_back(float(i) * 0.004f);
  const int64_t F = int64_t(x.size());
  const Tensor in = lab.of(x).as(DType::f32, {1, F}), y = lab.empty(DType::f32, {1, F});
  const Tensor dy = lab.of(std::vector<float>(x.size(), 1)).as(DType::f32, {1, F});
  const auto expect = [&](const char* name, auto&& formula) {
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = formula(double(x[i])), got = values(y.part(int64_t(i), {1}))[0];
      EXPECT_NEAR(got, want, 1e-6 * std::fabs(want) + 1e-6 * std::min(1.0, std::fabs(double(x[i]))))
          << name << ' ' << x[i];
    }
  };
  gelu_forward(lab.stream(), {.plain = y}, in, Gelu::exact);
  expect("gelu", [](double v) { return gelu(v); });
  gelu_forward(lab.stream(), {.plain = y}, in, Gelu::tanh);
  expect("gelu tanh", [](double v) { return gelu_tanh(v); });
  gelu_backward(lab.stream(), {.plain = y}, dy, in, Gelu::exact);
  expect("gelu'", [](double v) { return gelu_grad(v); });
  gelu_backward(lab.stream(), {.plain = y}, dy, in, Gelu::tanh);
  expect("gelu tanh'", [](double v) { return gelu_tanh_grad(v); });
}

TEST(OpValues, NanStaysNan) {
  Lab lab;
  const Tensor x = lab.of<float>({NAN, 1, 1, NAN}).as(DType::f32, {1, 4}), y = lab.empty(DType::f32, {1, 4});
  gelu_forward(lab.stream(), {.plain = y}, x, Gelu::exact);
  EXPECT_TRUE(std::isnan(y.ptr<float>()[0]) && !std::isnan(y.ptr<float>()[1]));
  const Tensor s = lab.empty(DType::f32, {1, 2}), loss = lab.empty(DType::f32, {1});
  swiglu_forward(lab.stream(), {.plain = s}, x);
  EXPECT_TRUE(std::isnan(s.ptr<float>()[0]) && std::isnan(s.ptr<float>()[1]));
  cross_entropy(lab.stream(), loss, x, lab.of<int32_t>({1}), 4, 1, Backward::yes);
  EXPECT_TRUE(std::isnan(loss.ptr<float>()[0]) && std::isnan(x.ptr<float>()[1]));
}

// A token's experts differ whatever its logits are, and a NaN among them reaches all of its weights.
TEST(OpValues, RoutesOfNanAreKDifferentExpertsWithNanWeights) {
  Lab lab;
  const Tensor x = lab.of<float>({NAN, 5, 3, 7, 1, 1, NAN, 2, INFINITY, NAN}).as(DType::f32, {2, 5});
  const MoeRoute route{lab.empty(DType::i32, {2, 4}), lab.empty(DType::f32, {2, 4}), lab.empty(DType::f32, {2, 5}),
                       lab.empty(DType::f32, {2})};
  moe_route(lab.stream(), route, x, x);
  const std::vector<int32_t> experts{0, 3, 1, 2, 1, 3, 4, 2};
  EXPECT_EQ(std::vector<int32_t>(route.expert.ptr<int32_t>(), route.expert.ptr<int32_t>() + 8), experts);
  for (const double w : values(route.weight)) EXPECT_TRUE(std::isnan(w));
}

TEST(OpValues, JitterIsUniformAroundOneAndOfItsSeed) {
  Lab lab;
  constexpr int64_t n = 30000;
  const Tensor x = lab.normal(DType::f64, {n}, 1, 9), y = lab.empty(DType::f64, {n}),
               other = lab.empty(DType::f64, {n});
  moe_jitter(lab.stream(), y, x, 0.1, 5);
  moe_jitter(lab.stream(), other, x, 0.1, 6);
  double mean = 0, square = 0, both = 0, largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto draw = [&](const Tensor& t) { return (t.ptr<double>()[i] / x.ptr<double>()[i] - 1) / 0.1; };
    const double a = draw(y), b = draw(other);
    mean += a / n, square += a * a / n, both += a * b / n, largest = std::max(largest, std::abs(a));
  }
  EXPECT_LE(largest, 1 + 1e-9);
  EXPECT_GT(largest, 0.999);
  EXPECT_NEAR(mean, 0, 0.02);  // six deviations
  EXPECT_NEAR(square, 1. / 3, 0.01);
  EXPECT_NEAR(both, 0, 0.012);
}

TEST(OpValues, SwigluOfExtremeGatesIsFinite) {
  Lab lab;
  const Tensor gu = lab.of<float>({-200, 200, -90, 1, 1, 1}), y = lab.empty(DType::f32, {1, 3});
  const Tensor d = lab.of<float>({1, 1, 1}), dgu = lab.empty(DType::f32, {1, 6});
  swiglu_forward(lab.stream(), {.plain = y}, gu.as(DType::f32, {1, 6}));
  swiglu_backward(lab.stream(), {.plain = dgu}, d.as(DType::f32, {1, 3}), gu.as(DType::f32, {1, 6}));
  expect_near(y, {0, 200, 0}, 1e-30);
  for (const double v : values(dgu)) EXPECT_TRUE(std::isfinite(v));
}

TEST(OpValues, SumsAndCopiesAreExact) {
  Lab lab;
  Stream& s = lab.stream();
  const Tensor x = lab.of<float>({1, 2, 3, 4, 5, 6}).as(DType::f32, {3, 2}), columns = lab.of<float>({10, 20});
  column_sum(s, columns, x, lab.partial(DType::f32, 2));
  expect_near(columns, {19, 32});
  const Tensor total = lab.of<double>({0.5}), squares = lab.of<double>({1});
  sum(s, total, x);
  sum_of_squares(s, squares, x, lab.empty(DType::f64, {partial_sums(s.target())}));
  expect_near(total, {21.5});
  expect_near(squares, {92});
  const Tensor b = lab.of<bf16>({bf16(1), bf16(2), bf16(3), bf16(4), bf16(5), bf16(6)}).as(DType::bf16, {3, 2});
  add(s, x, x, b);
  expect_near(x, {2, 4, 6, 8, 10, 12});
  const Tensor narrow = lab.empty(DType::bf16, {2});
  convert(s, narrow, lab.of<double>({1.0 + 1.0 / 512, -3}));
  expect_near(narrow, {1, -3});
  const Tensor codes = lab.of<uint32_t>({0x04030201, 0x06050403}).as(DType::e4m3, {2, 4}),
               t = lab.empty(DType::e4m3, {4, 2});
  transpose(s, t, codes);
  const uint8_t want[] = {1, 3, 2, 4, 3, 5, 4, 6};
  EXPECT_EQ(std::memcmp(t.data, want, 8), 0);
}

TEST(OpValues, InitialValuesAreTheCountersNumbersWhateverTheSplit) {
  Lab lab;
  const Tensor whole = lab.empty(DType::f32, {5000}), parts = lab.empty(DType::f32, {5000});
  init_normal(lab.stream(), whole, 1, 0.02, 9, 8, 0);
  for (const int64_t first : {0, 1234}) {
    const int64_t n = first ? 5000 - first : 1234;
    init_normal(lab.stream(), parts.part(first, {n}), 1, 0.02, 9, 8, first);
  }
  EXPECT_TRUE(same_bits(whole, parts));
  EXPECT_EQ(whole.ptr<float>()[77], float(1 + 0.02 * normal(9, 8, 77)));
  init_normal(lab.stream(), parts, 1, 0, 9, 8, 0);
  for (const double v : values(parts)) EXPECT_EQ(v, 1);
}

}  // namespace
}  // namespace octet::BACKEND
