// AdamW is its formula; stochastic rounding is unbiased and belongs to the element, not to the piece; a skipped step
// writes nothing; the step's record decides.
#include <gtest/gtest.h>

#include <cmath>

#include "base/float.h"
#include "cpu/lab.h"
#include "ops/formulas.h"

namespace octet::BACKEND {
namespace {

Tensor record(StepState& s) { return {&s, DType::e4m3, {int64_t(sizeof s)}}; }

struct Model {  // the optimizer's tensors of one parameter
  Tensor master, m, v, grad, weights;
  Model(Lab& lab, DType master_t, DType moment_t, DType grad_t, int64_t n) {
    master = lab.normal(master_t, {n});
    grad = lab.normal(grad_t, {n});
    m = lab.zeros(moment_t, {n});
    v = lab.zeros(moment_t, {n});
    weights = lab.empty(DType::bf16, {n});
  }
  AdamwPiece piece() const {
    return {.master = master, .m = m, .v = v, .grad = grad, .weights = weights, .decay = 0.1, .stream = 42};
  }
};

TEST(OpOptimizer, IsTheFormulaOfAdamw) {
  const int64_t n = 5000;
  Lab lab;
  StepState state;
  state.clip = 0.25;
  for (const DType t : {DType::f64, DType::f32}) {
    const Model p(lab, t, t, DType::f32, n);
    auto w = values(p.master);
    const auto grad = values(p.grad);
    std::vector<double> m(w.size()), v(w.size());
    for (uint32_t step = 1; step <= 3; ++step) {
      state.updates = step;
      adamw(lab.stream(), std::vector{p.piece()}, {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6},
            record(state));
      for (size_t i = 0; i < w.size(); ++i) {
        const double g = 0.25 * grad[i];
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.99 * v[i] + 0.01 * g * g;
        const double mean = m[i] / (1 - std::pow(0.9, step)), square = v[i] / (1 - std::pow(0.99, step));
        w[i] -= 0.01 * (mean / (std::sqrt(square) + 1e-6) + 0.1 * w[i]);
      }
    }
    const double bound = t == DType::f64 ? 1e-28 : 1e-13;
    EXPECT_LT(distance(values(p.master), w), bound);
    EXPECT_LT(distance(values(p.m), m), bound);
    EXPECT_LT(distance(values(p.v), v), bound);
    for (size_t i = 0; i < w.size(); ++i)
      ASSERT_EQ(values(p.weights)[i], double(float(bf16(float(values(p.master)[i])))));
  }
}

TEST(OpOptimizer, MeasuresTheUpdatedMaster) {
  for (const DType t : {DType::f32, DType::bf16}) {
    Lab lab;
    const Model p(lab, t, t, t, 5000);
    uint32_t amax = 0;
    AdamwPiece piece = p.piece();
    piece.amax = &amax;
    StepState state;
    state.updates = 1;
    adamw(lab.stream(), std::vector{piece}, {.lr = 0.1}, record(state));
    float largest = 0;
    for (const double w : values(p.master)) largest = std::max(largest, float(std::fabs(w)));
    EXPECT_EQ(std::bit_cast<float>(amax), largest);
  }
}

TEST(OpOptimizer, ASkippedStepWritesNothing) {
  Lab lab;
  const Model p(lab, DType::f32, DType::bf16, DType::f32, 100);
  const Tensor copies[] = {lab.copy(p.master), lab.copy(p.m), lab.copy(p.v), lab.copy(p.weights)};
  uint32_t amax = 3;
  AdamwPiece piece = p.piece();
  piece.amax = &amax;
  StepState state;
  state.updates = 1;
  state.skip = 1;
  adamw(lab.stream(), std::vector{piece}, {.lr = 0.1}, record(state));
  EXPECT_TRUE(same_bits(copies[0], p.master) && same_bits(copies[1], p.m) && same_bits(copies[2], p.v) &&
              same_bits(copies[3], p.weights));
  EXPECT_EQ(amax, 3u);
}

TEST(OpOptimizer, StochasticRoundingKeepsItsNeighboursAndItsMean) {
  for (const float x : {1.f + 1.f / 1024, -0.3333333f, 3e-5f}) {
    double sum = 0;
    const int n = 1 << 16;
    for (uint32_t r = 0; r < n; ++r) {  // every draw once: the mean is exact
      const float y = float(round_stochastic(x, r));
      EXPECT_LE(std::fabs(y - x), std::fabs(x) / 128);
      sum += double(y);
    }
    EXPECT_NEAR(sum / n, double(x), 1e-12);
  }
  for (const float x : {0.f, 1.f, -2.5f, INFINITY}) EXPECT_EQ(float(round_stochastic(x, 0xffff)), x);
  EXPECT_TRUE(std::isnan(float(round_stochastic(NAN, 0xffff))));
}

// bf16 state follows f32 state on average, where plain rounding would leave it where it is.
TEST(OpOptimizer, Bf16MastersMoveBySmallSteps) {
  const int64_t n = 20000;
  Lab lab;
  const Model p(lab, DType::bf16, DType::bf16, DType::f32, n);
  for (int64_t i = 0; i < n; ++i) p.master.ptr<bf16>()[i] = bf16(1), p.grad.ptr<float>()[i] = 1;
  StepState state;
  AdamwPiece piece = p.piece();
  piece.decay = 0;
  for (uint32_t step = 1; step <= 10; ++step) {
    state.updates = step;
    adamw(lab.stream(), std::vector{piece}, {.lr = 1e-4, .seed = 5, .step = step}, record(state));
  }
  double mean = 0, second = 0;
  for (const double w : values(p.master)) mean += w / double(n);
  for (const double v : values(p.v)) second += v / double(n);
  EXPECT_NEAR(mean, 1 - 10 * 1e-4, 1e-4);  // a bf16 step below 1 is 2^-8
  EXPECT_NEAR(second, 1 - std::pow(0.95, 10), 1e-3);
}

TEST(OpOptimizer, RandomBitsBelongToTheElementWhateverTheSplit) {
  const int64_t n = 6000;
  StepState state;
  state.updates = 1;
  const AdamwSettings settings{.lr = 0.01, .seed = 5, .step = 9};
  Lab one, two, other;
  const Model a(one, DType::bf16, DType::bf16, DType::bf16, n), b(two, DType::bf16, DType::bf16, DType::bf16, n);
  const Model c(other, DType::bf16, DType::bf16, DType::bf16, n);
  adamw(one.stream(), std::vector{a.piece()}, settings, record(state));
  std::vector<AdamwPiece> pieces;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{2777, n - 2777}, {0, 2777}}) {
    const auto part = [&, first = first, count = count](Tensor t) { return t.part(first, {count}); };
    pieces.push_back({part(b.master), part(b.m), part(b.v), part(b.grad), part(b.weights), nullptr, 0.1, 42, first});
  }
  adamw(two.stream(), pieces, settings, record(state));
  EXPECT_TRUE(same_bits(a.master, b.master) && same_bits(a.m, b.m) && same_bits(a.v, b.v));
  adamw(other.stream(), std::vector{c.piece()}, {.lr = 0.01, .seed = 5, .step = 10}, record(state));
  EXPECT_FALSE(same_bits(a.master, c.master));  // another step draws anew
}

TEST(OpOptimizer, RandomBitsDifferBySeedStepParameterElementAndTensor) {
  const uint64_t key = rounding_key(1, 2, 3);
  for (const uint64_t other : {rounding_key(7, 2, 3), rounding_key(1, 7, 3), rounding_key(1, 2, 7)})
    EXPECT_NE(rounding_bits(key, 0), rounding_bits(other, 0));
  constexpr int n = 1 << 16;
  std::vector<std::vector<double>> draws;  // of even and odd elements for each tensor, centred
  for (const Rounded what : {Rounded::m, Rounded::v, Rounded::master})
    for (const uint64_t odd : {0, 1}) {
      std::vector<double>& all = draws.emplace_back();
      for (uint64_t i = 0; i < n; ++i)
        all.push_back(rounding_part(rounding_bits(key, 2 * i + odd), what) / 32768. - (65535. / 65536));
    }
  for (size_t a = 0; a < draws.size(); ++a)
    for (size_t b = 0; b <= a; ++b) {
      double product = 0;
      for (size_t i = 0; i < n; ++i) product += draws[a][i] * draws[b][i] / n;
      EXPECT_NEAR(product, a == b ? 1. / 3 : 0, 0.01) << a << " and " << b;  // six deviations
    }
}

// 0.1 and 0.05 both lie four fifths of the way between their neighbours in bf16.
TEST(OpOptimizer, TheMomentsOfAnElementAreRoundedIndependently) {
  const int64_t n = 20000;
  Lab lab;
  const Model p(lab, DType::f32, DType::bf16, DType::f32, n);
  std::fill_n(p.grad.ptr<float>(), n, 1.f);
  StepState state;
  state.updates = 1;
  adamw(lab.stream(), std::vector{p.piece()}, {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95}, record(state));
  const std::vector<double> m = values(p.m), v = values(p.v);
  double up_m = 0, up_v = 0, both = 0;
  for (size_t i = 0; i < m.size(); ++i) {
    up_m += (m[i] > 0.1) / double(n), up_v += (v[i] > 0.05) / double(n);
    both += (m[i] > 0.1 && v[i] > 0.05) / double(n);
  }
  EXPECT_NEAR(up_m, 0.8, 0.02);
  EXPECT_NEAR(up_v, 0.8, 0.02);
  EXPECT_NEAR(both, 0.64, 0.02);
}

TEST(OpOptimizer, AnyNumberOfThreadsGivesTheSameBits) {
  StepState state;
  state.updates = 1;
  Lab one, two;
  const Model a(one, DType::bf16, DType::bf16, DType::f32, 9000), b(two, DType::bf16, DType::bf16, DType::f32, 9000);
  for (const Model* m : {&a, &b}) {
    const Threads scope(m == &a ? 1 : 3);
    adamw(one.stream(), std::vector{m->piece()}, {.lr = 0.1}, record(state));
  }
  EXPECT_TRUE(same_bits(a.master, b.master) && same_bits(a.m, b.m) && same_bits(a.v, b.v));
}

StepState finished(StepState s, double max_norm, int64_t growth_every = 0) {
  Lab lab;
  finish_gradients(lab.stream(), record(s), max_norm, growth_every);
  return s;
}
TEST(OpOptimizer, GradientsAreClippedByTheirNorm) {
  StepState s;
  s.squares = 16;
  EXPECT_EQ(finished(s, 1).norm, 4);
  EXPECT_EQ(finished(s, 1).clip, 0.25);
  EXPECT_EQ(finished(s, 5).clip, 1);
  EXPECT_EQ(finished(s, 0).clip, 1);
  EXPECT_EQ(finished(s, 1).updates, 1u);
  EXPECT_EQ(finished(s, 1).skipped, 0u);
}
TEST(OpOptimizer, NonFiniteStepsAreSkippedAndCounted) {
  StepState loss, norm, cast, huge;
  loss.loss = NAN;
  norm.squares = INFINITY;
  cast.nonfinite_casts = 1;
  huge.squares = 1e80;  // its root is no finite float
  for (const StepState& s : {loss, norm, cast, huge}) {
    const StepState end = finished(s, 1);
    EXPECT_TRUE(end.skip == 1 && end.updates == 0 && end.skipped == 1);
  }
}
TEST(OpOptimizer, TheLossScaleIsTakenOffTheNormAndTheGradients) {
  StepState s;
  s.squares = 16 * 64;  // a norm of 4
  s.loss_scale = 8;
  EXPECT_EQ(finished(s, 0).norm, 4);
  EXPECT_EQ(finished(s, 0).clip, 1. / 8);
  EXPECT_EQ(finished(s, 1).clip, 0.25 / 8);
  EXPECT_EQ(finished(s, 5).clip, 1. / 8);   // the norm without the scale is below 5
  EXPECT_EQ(finished(s, 1).loss_scale, 8);  // it is fixed
  EXPECT_EQ(finished(s, 1).good_steps, 0u);
}
TEST(OpOptimizer, ADynamicLossScaleHalvesWhereAStepIsSkippedAndGrowsAfterGoodOnes) {
  StepState s;
  s.loss_scale = 8;
  for (int i = 0; i < 7; ++i) s = finished(s, 1, 3);
  EXPECT_EQ(s.loss_scale, 32);  // doubled after three steps and after six
  EXPECT_EQ(s.good_steps, 1u);
  s.squares = INFINITY;
  s = finished(s, 1, 3);
  EXPECT_EQ(s.loss_scale, 16);
  EXPECT_EQ(s.good_steps, 0u);  // the three begin anew
  EXPECT_TRUE(s.skip == 1 && s.updates == 7 && s.skipped == 1);
  for (int i = 0; i < 6; ++i) s = finished(s, 1, 3);
  EXPECT_EQ(s.loss_scale, 1);  // no less
  s.squares = 0, s.loss_scale = 0x1p23f;
  for (int i = 0; i < 3; ++i) s = finished(s, 1, 1);
  EXPECT_EQ(s.loss_scale, 0x1p24f);  // no more
  s.loss_scale = 0x1.8p23f;
  EXPECT_EQ(finished(s, 1, 1).loss_scale, 0x1p24f);  // nor by steps that do not meet the bounds
  s.squares = INFINITY, s.loss_scale = 1.5;
  EXPECT_EQ(finished(s, 1, 1).loss_scale, 1);
}

}  // namespace
}  // namespace octet::BACKEND
