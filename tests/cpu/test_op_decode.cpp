// The operations of generation against those of a whole sequence.
#include <gtest/gtest.h>

#include <numeric>

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
  const Tensor start = lab.of(std::vector<int32_t>(2, int32_t(begun)));
  attention_decode(
      lab.stream(), got, rows(T - 1, 1),
      {.kv = kv, .heads = h, .start = start, .first = T - 1 - begun, .longest = T, .window = window, .scale = 0.3}, {});
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
  const Tensor start = lab.of(std::vector<int32_t>{9, 0, 15});
  const auto run = [&](Tensor o, Tensor rows, const KvRows& cache, Tensor from) {
    kv_append(lab.stream(), {.kv = cache, .heads = h, .first = 4, .start = from}, rows);
    attention_decode(lab.stream(), o, rows, {.kv = cache, .heads = h, .start = from, .first = 4, .longest = S}, {});
  };
  run(together, qkv, kv, start);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t size = h.G * S * h.D;
    const KvRows own{kv.k.part(b * size, {1, h.G, S, h.D}), kv.v.part(b * size, {1, h.G, S, h.D})};
    const Tensor alone = lab.empty(DType::f32, {1, h.H * h.D});
    run(alone, qkv.row_range(b, 1), own, start.part(b, {1}));
    EXPECT_TRUE(same_bits(alone, together.row_range(b, 1))) << b;
  }
}

TEST(OpDecode, RopeTurnsEachSequenceFromItsOwnStart) {
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
  const Tensor x = lab.normal(DType::f32, {5, 300});
  float* p = x.ptr<float>();
  p[0 * 300 + 299] = 100;                                    // padding
  p[1 * 300 + 17] = p[1 * 300 + 200] = 50;                   // equal ones
  p[2 * 300 + 0] = 60;                                       // the first
  p[3 * 300 + 279] = 70;                                     // the last
  for (int i = 0; i < 300; ++i) p[4 * 300 + i] = -INFINITY;  // nothing
  const Tensor index = lab.empty(DType::i32, {5});
  argmax(lab.stream(), index, x, 280);
  const int32_t* got = index.ptr<int32_t>();
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
  EXPECT_THROW(
      attention_decode(lab.stream(), o, x, {.kv = kv, .heads = h, .start = start, .first = 1, .longest = 5}, {}),
      Error);
}

}  // namespace
}  // namespace octet::BACKEND
