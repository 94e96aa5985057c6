// The operations of generation against those of a whole sequence.
#include <gtest/gtest.h>

#include <algorithm>

#include "cpu/lab.h"
#include "ops/decode.h"

namespace octet::BACKEND {
namespace {

// A sequence's last row by attention_forward over all of it, and by attention_decode over a cache that was filled in
// two passes, the second from position `begun` on.
void expect_last_row(const Heads& h, int64_t T, int64_t window, DType type) {
  SCOPED_TRACE(concat("H ", h.H, ", G ", h.G, ", D ", h.D, ", T ", T, ", window ", window, ", ", name_of(type)));
  Lab lab;
  const int64_t B = 2, W = h.width(), S = T + 3, begun = T / 2;
  const Tensor qkv = lab.normal(type, {B * T, W}), o = lab.empty(type, {B * T, h.H * h.D});
  attention_forward(lab.stream(), o, lab.empty(wide(type), {B, h.H, T}), qkv,
                    {.heads = h, .B = B, .T = T, .window = window, .scale = 0.3}, {});
  const KvRows kv{lab.empty(type, {B, h.G, S, h.D}), lab.empty(type, {B, h.G, S, h.D})};
  const auto rows = [&](int64_t first, int64_t count) {  // of both sequences
    const Tensor some = lab.empty(type, {B * count, W});
    for (int64_t b = 0; b < B; ++b)
      copy(lab.stream(), some.row_range(b * count, count), qkv.row_range(b * T + first, count));
    return some;
  };
  if (begun) kv_append(lab.stream(), {.kv = kv, .heads = h, .T = begun}, rows(0, begun));
  kv_append(lab.stream(), {.kv = kv, .heads = h, .T = T - begun, .first = begun}, rows(begun, T - begun));
  const Tensor got = lab.empty(type, {B, h.H * h.D});
  const Tensor position = lab.of(std::vector<int32_t>(2, int32_t(T - 1)));
  attention_decode(lab.stream(), got, rows(T - 1, 1),
                   {.kv = kv, .heads = h, .position = position, .window = window, .scale = 0.3});
  for (int64_t b = 0; b < B; ++b)
    EXPECT_LT(distance(values(got.row_range(b, 1)), values(o.row_range(b * T + T - 1, 1))), type == DType::f64 ? 1e-28
                                                                                            : type == DType::f32
                                                                                                ? 1e-12
                                                                                                : 1e-5);
}

TEST(OpDecode, IsTheLastRowOfAttention) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t T : {1, 2, 7, 65})
      for (const int64_t window : {0, 1, 5, 64}) {
        expect_last_row({.H = 4, .G = 4, .D = 8}, T, window, type);
        expect_last_row({.H = 6, .G = 2, .D = 16}, T, window, type);
        expect_last_row({.H = 5, .G = 1, .D = 24}, T, window, type);
        expect_last_row({.H = 3, .G = 3, .D = 16, .interleaved = true}, T, window, type);
      }
}

TEST(OpDecode, SequencesHavePositionsOfTheirOwn) {  // a batch equals its sequences one by one
  Lab lab;
  const Heads h{.H = 4, .G = 2, .D = 8};
  const int64_t B = 3, S = 20;
  const KvRows kv{lab.normal(DType::f32, {B, h.G, S, h.D}), lab.normal(DType::f32, {B, h.G, S, h.D})};
  const Tensor qkv = lab.normal(DType::f32, {B, h.width()}), together = lab.empty(DType::f32, {B, h.H * h.D});
  const Tensor position = lab.of(std::vector<int32_t>{13, 4, 19});
  const auto run = [&](Tensor o, Tensor rows, const KvRows& cache, Tensor at) {
    kv_append(lab.stream(), {.kv = cache, .heads = h, .start = at}, rows);
    attention_decode(lab.stream(), o, rows, {.kv = cache, .heads = h, .position = at});
  };
  run(together, qkv, kv, position);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t size = h.G * S * h.D;
    const KvRows own{kv.k.part(b * size, {1, h.G, S, h.D}), kv.v.part(b * size, {1, h.G, S, h.D})};
    const Tensor alone = lab.empty(DType::f32, {1, h.H * h.D});
    run(alone, qkv.row_range(b, 1), own, position.part(b, {1}));
    EXPECT_TRUE(same_bits(alone, together.row_range(b, 1))) << b;
  }
}

TEST(OpDecode, AStepRotatesAppendsAndAttends) {
  Lab lab;
  const Heads h{.H = 4, .G = 2, .D = 16};
  const int64_t B = 2, S = 9;
  const Tensor k = lab.normal(DType::f32, {B, h.G, S, h.D}), v = lab.normal(DType::f32, {B, h.G, S, h.D});
  const KvRows apart{lab.copy(k), lab.copy(v)}, together{lab.copy(k), lab.copy(v)};
  const Tensor table = rope_table(lab, DType::f32, S, 8), position = lab.of(std::vector<int32_t>{7, 2});
  const Tensor x = lab.normal(DType::f32, {B, h.width()}), rotated = lab.copy(x);
  const Tensor want = lab.empty(DType::f32, {B, h.H * h.D}), got = lab.empty(DType::f32, {B, h.H * h.D});
  rope_forward(lab.stream(), rotated, {.table = table, .heads = h, .start = position});
  kv_append(lab.stream(), {.kv = apart, .heads = h, .start = position}, rotated);
  attention_decode(lab.stream(), want, rotated, {.kv = apart, .heads = h, .position = position});
  attention_step(lab.stream(), got, x, table, {.kv = together, .heads = h, .position = position});
  EXPECT_TRUE(same_bits(got, want));
  EXPECT_TRUE(same_bits(together.k, apart.k));
  EXPECT_TRUE(same_bits(together.v, apart.v));
  EXPECT_FALSE(same_bits(together.k, k));
}

TEST(OpDecode, ANormedProductIsTheNormTheProductAndTheGate) {
  Lab lab;
  const int64_t N = 3, C = 40, O = 24;
  for (const DType type : {DType::f64, DType::f32, DType::bf16})
    for (const bool gated : {false, true}) {
      const Tensor x = lab.normal(type, {N, C}), norm = lab.normal(type, {C}), w = lab.normal(type, {O, C});
      const Tensor y = lab.empty(type, {N, gated ? O / 2 : O});
      normed_product(lab.stream(), {.y = y,
                                    .x = x,
                                    .norm = norm,
                                    .w = w,
                                    .eps = 0.1,
                                    .gated = gated,
                                    .normed = lab.empty(type, {N, C}),
                                    .rstd = lab.empty(wide(type), {N}),
                                    .product = lab.empty(type, {N, O})});
      const std::vector<double> xs = values(x), ns = values(norm), ws = values(w), got = values(y);
      std::vector<double> want;
      for (int64_t n = 0; n < N; ++n) {
        double squares = 0.1 * double(C);
        for (int64_t c = 0; c < C; ++c) squares += xs[size_t(n * C + c)] * xs[size_t(n * C + c)];
        const auto product = [&](int64_t o) {
          double sum = 0;
          for (int64_t c = 0; c < C; ++c) sum += xs[size_t(n * C + c)] * ns[size_t(c)] * ws[size_t(o * C + c)];
          return sum / std::sqrt(squares / double(C));
        };
        for (int64_t o = 0; o < y.cols(); ++o) {
          const double p = product(o);
          want.push_back(gated ? p / (1 + std::exp(-p)) * product(O / 2 + o) : p);
        }
      }
      EXPECT_LT(distance(got, want), type == DType::f64 ? 1e-28 : type == DType::f32 ? 1e-12 : 1e-5) << gated;
    }
}

TEST(OpDecode, RopeRotatesEachSequenceFromItsOwnStart) {
  Lab lab;
  const Heads h{.H = 2, .G = 1, .D = 8};
  const Tensor table = rope_table(lab, DType::f32, 40, 8), x = lab.normal(DType::f32, {6, h.width()});
  const Tensor all = lab.copy(x), one = lab.copy(x);
  const Tensor start = lab.of(std::vector<int32_t>{30, 0, 7});
  rope_forward(lab.stream(), all, {.table = table, .heads = h, .T = 2, .first = 3, .start = start});
  for (int64_t b = 0; b < 3; ++b)
    rope_forward(lab.stream(), one.row_range(2 * b, 2),
                 {.table = table, .heads = h, .T = 2, .first = 3 + start.ptr<int32_t>()[b]});
  EXPECT_TRUE(same_bits(all, one));
}

TEST(OpDecode, ArgmaxIsTheFirstOfTheLargestWithoutPadding) {
  Lab lab;
  const Tensor x = lab.normal(DType::f32, {7, 300});
  float* p = x.ptr<float>();
  p[0 * 300 + 299] = 100;                                          // padding
  p[1 * 300 + 17] = p[1 * 300 + 200] = 50;                         // equal ones
  p[2 * 300 + 0] = 60;                                             // the first
  p[3 * 300 + 279] = 70;                                           // the last
  for (int i = 0; i < 300; ++i) p[4 * 300 + i] = -INFINITY;        // nothing
  p[5 * 300 + 40] = p[5 * 300 + 290] = NAN, p[5 * 300 + 41] = 90;  // a NaN is told; one of the padding does not count
  p[6 * 300 + 299] = NAN;
  const Tensor index = lab.empty(DType::i32, {7}), largest = lab.empty(DType::f32, {7});
  argmax(lab.stream(), index, largest, x, 280);
  const int32_t* got = index.ptr<int32_t>();
  for (const int n : {0, 1, 2, 3, 4, 6})
    EXPECT_EQ(largest.ptr<float>()[n], *std::max_element(p + n * 300, p + n * 300 + 280)) << n;
  EXPECT_TRUE(std::isnan(largest.ptr<float>()[5]));
  EXPECT_LT(uint32_t(got[5]), 280u);
  EXPECT_EQ(got[6], std::max_element(p + 6 * 300, p + 6 * 300 + 280) - (p + 6 * 300));
  EXPECT_EQ(got[0], std::max_element(p, p + 280) - p);
  EXPECT_EQ(got[1], 17);
  EXPECT_EQ(got[2], 0);
  EXPECT_EQ(got[3], 279);
  EXPECT_EQ(got[4], 0);
}

TEST(OpDecode, BeyondTheCacheIsRefused) {
  Lab lab;
  const Heads h{.H = 1, .G = 1, .D = 8};
  const KvRows kv{lab.zeros(DType::f32, {1, 1, 4, 8}), lab.zeros(DType::f32, {1, 1, 4, 8})};
  const Tensor x = lab.normal(DType::f32, {1, h.width()}), o = lab.empty(DType::f32, {1, 8});
  const Tensor start = lab.of(std::vector<int32_t>{3});
  EXPECT_NO_THROW(kv_append(lab.stream(), {.kv = kv, .heads = h, .start = start}, x));
  EXPECT_THROW(kv_append(lab.stream(), {.kv = kv, .heads = h, .first = 1, .start = start}, x), Error);
  const DecodeAttention a{.kv = kv, .heads = h, .position = start};
  EXPECT_NO_THROW(attention_decode(lab.stream(), o, x, a));
  advance(lab.stream(), start);
  EXPECT_THROW(attention_decode(lab.stream(), o, x, a), Error);
}

}  // namespace
}  // namespace octet::BACKEND
