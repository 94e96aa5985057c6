// Products equal the plain triple sum, whatever the types, layouts and additions.
#include <gtest/gtest.h>

#include "cpu/lab.h"

namespace octet::BACKEND {
namespace {

struct Product {
  Tensor d;
  Factor a, b;
  Tensor residual{}, bias{};
  bool accumulate = false;
};

// In f64, from the values that the factors store.
std::vector<double> plain_product(const Product& p, const std::vector<double>& before) {
  const int64_t M = p.d.rows(), N = p.d.cols(), K = p.a.contracted();
  const auto a = values(p.a.t), b = values(p.b.t);
  const auto bias = p.bias ? values(p.bias) : std::vector<double>(size_t(N)), zero = std::vector<double>(size_t(M * N));
  const auto residual = p.residual ? values(p.residual) : zero;
  const double scale = double(p.a.scale_inv ? *p.a.scale_inv : 1) * double(p.b.scale_inv ? *p.b.scale_inv : 1);
  std::vector<double> d;
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < K; ++k)
        sum += a[size_t(p.a.transposed ? k * M + m : m * K + k)] * b[size_t(p.b.transposed ? k * N + n : n * K + k)];
      d.push_back(sum * scale + bias[size_t(n)] + residual[d.size()] + (p.accumulate ? before[d.size()] : 0));
    }
  return d;
}
void expect_product(Lab& lab, const Product& p, double bound) {
  const auto want = plain_product(p, values(p.d));
  gemm(lab.stream(),
       {.d = p.d, .a = p.a, .b = p.b, .residual = p.residual, .bias = p.bias, .accumulate = p.accumulate});
  EXPECT_LT(distance(values(p.d), want), bound)
      << p.d.shape << ' ' << name_of(p.a.t.dtype) << ' ' << name_of(p.d.dtype);
}
double bound_of(DType d) { return d == DType::f64 ? 1e-28 : d == DType::f32 ? 1e-13 : 1e-5; }

Factor factor(Lab& lab, DType t, int64_t rows, int64_t K, bool transposed) {
  return {lab.normal(t, transposed ? Shape{K, rows} : Shape{rows, K}), transposed};
}

TEST(OpGemm, EveryLayoutAndType) {
  const Threads one(1);  // many small calls
  for (const DType in : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const DType out : {in, wide(in)})
      for (const bool ta : {false, true})
        for (const bool tb : {false, true})
          for (const Shape s : {Shape{1, 1, 1}, Shape{37, 65, 19}, Shape{300, 530, 40}, Shape{5, 1, 70}}) {
            Lab lab;
            const Tensor d = lab.empty(out, {s[0], s[1]});
            expect_product(lab, {d, factor(lab, in, s[0], s[2], ta), factor(lab, in, s[1], s[2], tb)}, bound_of(out));
          }
}

TEST(OpGemm, BiasResidualAndAccumulation) {
  const Threads one(1);  // many small calls
  for (const DType in : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const DType out : {in, wide(in)})
      for (int which = 0; which < 8; ++which) {
        Lab lab;
        Product p{lab.normal(out, {130, 70}, 3), factor(lab, in, 130, 33, false), factor(lab, in, 70, 33, true)};
        if (which & 1) p.bias = lab.normal(in, {70}, 5);
        if (which & 2) p.residual = lab.normal(out, {130, 70}, 5);
        p.accumulate = (which & 4) != 0;
        expect_product(lab, p, bound_of(out));
      }
}

TEST(OpGemm, AFirstTermOverwritesWhateverLiesThere) {
  for (const DType in : {DType::f64, DType::f32, DType::bf16})
    for (const DType out : {in, wide(in)})
      for (const int64_t K : {33, 0}) {
        Lab lab;
        const Factor a = factor(lab, in, 130, K, true), b = factor(lab, in, 70, K, true);
        const Tensor d = lab.empty(out, {130, 70}), want = lab.empty(out, {130, 70});
        fill_byte(lab.stream(), d.data, 0xFF, d.bytes());  // NaN
        gemm(lab.stream(), {.d = d, .a = a, .b = b, .accumulate = true, .first_term = true});
        gemm(lab.stream(), {.d = want, .a = a, .b = b});
        EXPECT_EQ(values(d), values(want)) << name_of(in) << " to " << name_of(out) << ' ' << K;
      }
}

TEST(OpGemm, Fp8CodesAreExactAndScaled) {
  for (const DType format : {DType::e4m3, DType::e5m2})
    for (const DType out : {DType::f32, DType::bf16}) {
      Lab lab;
      float scale_a = 20, scale_b = 1000, inverse_a = 0, inverse_b = 0;
      const Tensor a = lab.empty(DType::e4m3, {50, 48}), b = lab.empty(format, {66, 48});
      quantize(lab.stream(), {.q = a, .scale_inv = &inverse_a, .slot = {&scale_a, nullptr, DType::e4m3}},
               lab.normal(DType::f32, {50, 48}));
      quantize(lab.stream(), {.q = b, .scale_inv = &inverse_b, .slot = {&scale_b, nullptr, format}},
               lab.normal(DType::f32, {66, 48}));
      const Tensor d = lab.normal(out, {50, 66});
      expect_product(lab, {d, {a, false, &inverse_a}, {b, false, &inverse_b}, {}, {}, true}, bound_of(out));
    }
}

TEST(OpGemm, RefusesShapesThatDoNotFit) {
  Lab lab;
  const Tensor d = lab.empty(DType::f32, {3, 4}), a = lab.normal(DType::f32, {3, 5}),
               b = lab.normal(DType::f32, {4, 6});
  EXPECT_THROW(gemm(lab.stream(), {.d = d, .a = {a}, .b = {b}}), Error);
  EXPECT_THROW(gemm(lab.stream(), {.d = d, .a = {lab.empty(DType::e4m3, {5, 3}), true}, .b = {b}}), Error);
}

}  // namespace
}  // namespace octet::BACKEND
