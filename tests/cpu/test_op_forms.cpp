// A producer writes any subset of its operand's forms with the same values, and measures the maximum exactly.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "cpu/lab.h"

namespace octet::BACKEND {
namespace {

struct Producer {
  std::string name;
  int64_t N, C;
  std::function<void(Lab&, DType, Operand)> run;
};

std::vector<Producer> producers() {
  const int64_t N = 70, C = 36;
  const Heads heads{.H = 4, .G = 1, .D = 6};
  return {
      {"rmsnorm", N, C,
       [=](Lab& lab, DType t, Operand y) {
         rmsnorm_forward(lab.stream(), y, lab.empty(wide(t), {N}), lab.normal(t, {N, C}), lab.normal(t, {C}), 1e-5);
       }},
      {"layernorm", N, C,
       [=](Lab& lab, DType t, Operand y) {
         layernorm_forward(lab.stream(), {y, lab.empty(wide(t), {N}), lab.empty(wide(t), {N}), lab.normal(t, {N, C}),
                                          lab.normal(t, {C}), lab.normal(t, {C}), 1e-5});
       }},
      {"rope backward", N, C,
       [=](Lab& lab, DType t, Operand y) {
         rope_backward(lab.stream(), y, lab.normal(t, {N, C}), {rope_table(lab, t, N, 6), heads, N});
       }},
      {"swiglu", N, C,
       [=](Lab& lab, DType t, Operand y) {
         swiglu_forward(lab.stream(), y, lab.normal(t, {N, 2 * C}));
       }},
      {"swiglu backward", N, C,
       [=](Lab& lab, DType t, Operand y) {
         swiglu_backward(lab.stream(), y, lab.normal(t, {N, C / 2}), lab.normal(t, {N, C}));
       }},
      {"gelu", N, C,
       [=](Lab& lab, DType t, Operand y) {
         gelu_forward(lab.stream(), y, lab.normal(t, {N, C}), Gelu::tanh);
       }},
      {"gelu backward", N, C,
       [=](Lab& lab, DType t, Operand y) {
         gelu_backward(lab.stream(), y, lab.normal(t, {N, C}), lab.normal(t, {N, C}), Gelu::exact);
       }},
      {"quantize", N, C,
       [=](Lab& lab, DType t, Operand y) {
         quantize(lab.stream(), y, lab.normal(t, {N, C}));
       }},
  };
}

struct Written {  // what one call left behind
  Tensor plain, q, q_t;
  float scale_inv = -1;
  uint32_t amax = 0;
};
Written produce(const Producer& p, Lab& lab, DType t, DType format, Forms forms, float scale) {
  Written w;
  if (forms.plain) w.plain = lab.empty(t, {p.N, p.C});
  if (forms.q) w.q = lab.empty(format, {p.N, p.C});
  if (forms.q_t) w.q_t = lab.empty(format, {p.C, p.N});
  Lab inputs;
  p.run(inputs, t, {w.plain, w.q, w.q_t, &w.scale_inv, {&scale, &w.amax, format}});
  return w;
}

TEST(OpForms, AnySubsetHoldsTheSameValues) {
  const Threads one(1);  // many small calls
  for (const Producer& p : producers())
    for (const DType t : {DType::f64, DType::f32, DType::bf16})
      for (const DType format : {DType::e4m3, DType::e5m2}) {
        SCOPED_TRACE(concat(p.name, ", ", name_of(t), ", ", name_of(format)));
        const float scale = 150;  // some values saturate in e4m3
        Lab lab;
        const Written all = produce(p, lab, t, format, {true, true, true}, scale);
        EXPECT_EQ(all.scale_inv, 1 / scale);
        for (int subset = 0; subset < 8; ++subset) {
          const Forms forms{(subset & 1) != 0, (subset & 2) != 0, (subset & 4) != 0};
          const Written w = produce(p, lab, t, format, forms, scale);
          if (forms.plain) { EXPECT_TRUE(same_bits(w.plain, all.plain)); }
          if (forms.q) { EXPECT_TRUE(same_bits(w.q, all.q)); }
          if (forms.q_t) { EXPECT_TRUE(same_bits(w.q_t, all.q_t)); }
          EXPECT_EQ(w.amax, all.amax);
        }
        const Tensor back = lab.empty(format, {p.C, p.N});
        transpose(lab.stream(), back, all.q);
        EXPECT_TRUE(same_bits(back, all.q_t));
        if (t == DType::bf16) continue;  // codes and amax come from the result before its rounding to bf16
        float largest = 0;
        const auto v = values(all.plain), q = values(all.q);
        for (size_t i = 0; i < v.size(); ++i) {
          largest = std::max(largest, std::fabs(float(v[i])));
          const float scaled = float(v[i]) * scale;
          ASSERT_EQ(q[i], double(format == DType::e4m3 ? float(e4m3(scaled)) : float(e5m2(scaled)))) << i;
        }
        EXPECT_EQ(std::bit_cast<float>(all.amax), largest);
      }
}

TEST(OpForms, CodesComeFromTheResultNotFromItsRoundingToBf16) {
  for (const Producer& p : producers()) {
    if (p.name == "quantize") continue;  // its input is all there is
    Lab lab;
    const Written w = produce(p, lab, DType::bf16, DType::e4m3, {true, true, false}, 64);
    const auto v = values(w.plain), q = values(w.q);
    int others = 0;
    for (size_t i = 0; i < v.size(); ++i) others += q[i] != double(float(e4m3(float(v[i]) * 64)));
    EXPECT_GT(others, 0) << p.name;
    EXPECT_LT(others, int(v.size()) / 4) << p.name;
  }
}

uint32_t amax_of(const std::vector<float>& x, uint32_t before, int threads) {
  const Threads scope(threads);
  Lab lab;
  uint32_t amax = before;
  const Tensor t = lab.of(x);
  quantize(lab.stream(), {.slot = {.amax = &amax}}, t.as(DType::f32, {t.numel() / 2, 2}));  // only measured
  return amax;
}
TEST(OpForms, TheMaximumKeepsNanAboveInfAboveFiniteAboveWhatWasThere) {
  for (const int threads : {1, 2}) {
    EXPECT_EQ(amax_of({1, -3, 2, 0}, 0, threads), std::bit_cast<uint32_t>(3.f));
    EXPECT_EQ(amax_of({1, -3, 2, 0}, std::bit_cast<uint32_t>(7.f), threads), std::bit_cast<uint32_t>(7.f));
    EXPECT_EQ(amax_of({1, -3, -INFINITY, 0}, 0, threads), std::bit_cast<uint32_t>(INFINITY));
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(amax_of({1, NAN, INFINITY, 0}, 0, threads))));
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(amax_of({1, 4, 2, 0}, std::bit_cast<uint32_t>(NAN), threads))));
  }
}

TEST(OpForms, NanBecomesNanAndInfinitySaturates) {
  Lab lab;
  float scale = 2;
  const Tensor q = lab.empty(DType::e4m3, {1, 4});
  quantize(lab.stream(), {.q = q, .slot = {&scale, nullptr, DType::e4m3}},
           lab.of<float>({NAN, INFINITY, -INFINITY, 1.5f}).as(DType::f32, {1, 4}));
  const auto v = values(q);
  EXPECT_TRUE(std::isnan(v[0]));
  EXPECT_EQ(v[1], 448);
  EXPECT_EQ(v[2], -448);
  EXPECT_EQ(v[3], 3);
}

}  // namespace
}  // namespace octet::BACKEND
