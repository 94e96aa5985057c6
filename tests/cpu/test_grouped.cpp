// The products of experts equal three plain loops; rows behind the last are zero whatever stood there, an expert
// without rows keeps its gradient, and every expert has its own scales.
#include <gtest/gtest.h>

#include "cpu/lab.h"
#include "grouped_reference.h"
#include "ops/grouped.h"

namespace octet::BACKEND {
namespace {

using namespace grouped_reference;

// Small whole numbers: every sum is exact, whatever its order and the type it is stored in.
struct Case {
  Lab lab;
  std::vector<int32_t> offset;
  int64_t R, E, I = 20, O = 12;
  DType type;
  uint64_t draws = 0;

  Case(DType t, const std::vector<int>& tokens) : offset(offsets(tokens)), R(offset.back() + 40), type(t) {
    E = int64_t(tokens.size());
  }
  Values numbers(int64_t n) {
    Values v(static_cast<size_t>(n));
    ++draws;
    for (size_t i = 0; i < v.size(); ++i) v[i] = double(random_bits(3, draws, i) % 5) - 2;
    return v;
  }
  Tensor store(DType t, Shape shape, const Values& v) {
    const Tensor y = lab.empty(t, shape);
    visit<double, float, bf16, f16, e4m3, e5m2>(t, [&]<class T>() {
      for (size_t i = 0; i < v.size(); ++i) {
        if constexpr (std::is_same_v<T, double>) y.ptr<T>()[i] = v[i];
        else y.ptr<T>()[i] = T(float(v[i]));
      }
    });
    return y;
  }
  // What stands behind the last row is not a number.
  Tensor store_rows(const Values& v, int64_t cols, bool transpose) {
    Values poisoned = v;
    for (int64_t i = offset.back() * cols; i < R * cols; ++i) poisoned[size_t(i)] = NAN;
    return transpose ? store(type, {cols, R}, transposed(poisoned, R, cols)) : store(type, {R, cols}, poisoned);
  }
  // Scales 16 bytes apart: 1/2, 1/4, 1/8, ... for each expert.
  const float* scales(int64_t n) {
    std::vector<float> v;
    for (int64_t i = 0; i < n; ++i) v.insert(v.end(), {std::ldexp(1.f, int(-1 - i)), NAN, NAN, NAN});
    return lab.of(v).ptr<float>();
  }
  ExpertRows rows() { return {.offset = lab.of(offset), .assignments = R}; }
};

std::vector<std::vector<int>> token_counts() { return {{0, 1, 15, 17, 0, 64, 130}, {0, 0, 77, 0}, {0, 0, 0}, {33}}; }

TEST(Grouped, RowsAreTheirExpertsProductsAndZeroBehindTheLast) {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const bool transpose : {false, true})
      for (const auto& tokens : token_counts()) {
        Case c(t, tokens);
        const Values a = c.numbers(c.R * c.I);
        std::vector<Values> w;
        std::vector<Factor> b;
        for (int64_t e = 0; e < c.E; ++e) {
          w.push_back(c.numbers(c.O * c.I));
          b.push_back(
              {transpose ? c.store(t, {c.I, c.O}, transposed(w.back(), c.O, c.I)) : c.store(t, {c.O, c.I}, w.back()),
               transpose});
        }
        const Tensor d = c.lab.empty(t, {c.R, c.O});
        grouped_gemm(c.lab.stream(), {.d = d, .a = {c.store_rows(a, c.I, false)}, .b = b, .rows = c.rows()});
        EXPECT_EQ(values(d), rows_product(c.offset, a, w, c.O, c.I)) << name_of(t) << transpose;
      }
}

TEST(Grouped, GradientsAddTheirExpertsRowsAndAnExpertWithoutRowsKeepsIts) {
  const double kNothing = std::nan("");  // what lies where a sum has no term yet
  for (const DType t : {DType::f64, DType::f32, DType::bf16})
    for (const int form : {0, 1, 2, 3})
      for (const auto& tokens : token_counts()) {
        const bool transpose = form & 1, first_term = form & 2;
        Case c(t, tokens);
        const Values dy = c.numbers(c.R * c.O), x = c.numbers(c.R * c.I);
        std::vector<Tensor> d;
        std::vector<Values> want;
        for (int64_t e = 0; e < c.E; ++e) {
          want.push_back(first_term ? Values(size_t(c.O * c.I), kNothing) : c.numbers(c.O * c.I));
          d.push_back(c.store(wide(t), {c.O, c.I}, want.back()));
          if (first_term) want.back().assign(want.back().size(), 0);
          const Values sum = sums_product(c.offset, e, dy, x, c.O, c.I);
          for (size_t i = 0; i < sum.size(); ++i) want.back()[i] += sum[i];
        }
        grouped_gradient(c.lab.stream(), {.d = d,
                                          .a = {c.store_rows(dy, c.O, !transpose), transpose},
                                          .b = {c.store_rows(x, c.I, !transpose), transpose},
                                          .rows = c.rows(),
                                          .first_term = first_term});
        for (size_t e = 0; e < d.size(); ++e) EXPECT_EQ(values(d[e]), want[e]) << e << name_of(t) << form;
      }
}

TEST(Grouped, Fp8HasAScaleForEachExpertsWeightsAndForItsRowsIfAsked) {
  for (const int64_t step : {0, 4}) {
    Case c(DType::e4m3, {0, 1, 15, 17, 0, 40});
    const float *x_scale = c.scales(c.E), *w_scale = c.scales(c.E);
    const auto scale = [&](int64_t e) { return double(x_scale[e * step]); };
    const Values a = c.numbers(c.R * c.I), dy = c.numbers(c.R * c.O);
    std::vector<Values> w;
    std::vector<Factor> b;
    std::vector<Tensor> grads;
    for (int64_t e = 0; e < c.E; ++e) {
      w.push_back(c.numbers(c.O * c.I));
      b.push_back({c.store(DType::e4m3, {c.O, c.I}, w.back()), false, w_scale + 4 * e});
      grads.push_back(c.lab.zeros(DType::f32, {c.O, c.I}));
    }
    const Tensor d = c.lab.empty(DType::f32, {c.R, c.O});
    grouped_gemm(
        c.lab.stream(),
        {.d = d, .a = {c.store_rows(a, c.I, false), false, x_scale}, .b = b, .rows = c.rows(), .scale_step = step});
    Values want = rows_product(c.offset, a, w, c.O, c.I);
    for (int64_t r = 0; r < c.offset.back(); ++r)
      for (int64_t o = 0; o < c.O; ++o) {
        const int64_t e = expert_of(c.offset, r);
        want[size_t(r * c.O + o)] *= scale(e) * double(w_scale[4 * e]);
      }
    EXPECT_EQ(values(d), want) << step;
    grouped_gradient(c.lab.stream(), {.d = grads,
                                      .a = {c.store_rows(dy, c.O, true), false, x_scale},
                                      .b = {c.store_rows(a, c.I, true), false, x_scale},
                                      .rows = c.rows(),
                                      .scale_step = step});
    for (int64_t e = 0; e < c.E; ++e) {
      Values sum = sums_product(c.offset, e, dy, a, c.O, c.I);
      for (double& v : sum) v *= scale(e) * scale(e);
      EXPECT_EQ(values(grads[size_t(e)]), sum) << e << " step " << step;
    }
  }
}

TEST(Grouped, RefusesShapesThatDoNotFit) {
  Case c(DType::f32, {4, 5});
  const Tensor x = c.lab.zeros(DType::f32, {c.R, c.I}), d = c.lab.zeros(DType::f32, {c.R, c.O});
  const std::vector<Factor> one{{c.lab.zeros(DType::f32, {c.O, c.I})}}, two(2, one[0]);
  EXPECT_THROW(grouped_gemm(c.lab.stream(), {.d = d, .a = {x}, .b = one, .rows = c.rows()}), Error);
  EXPECT_THROW(grouped_gemm(c.lab.stream(), {.d = d.row_range(0, c.R - 1), .a = {x}, .b = two, .rows = c.rows()}),
               Error);
  EXPECT_THROW(
      grouped_gemm(c.lab.stream(), {.d = d.row_range(0, 32), .a = {x.row_range(0, 32)}, .b = two, .rows = c.rows()}),
      Error);  // the experts have more rows than the buffer
}

}  // namespace
}  // namespace octet::BACKEND
