// Attention within documents is, row by row, the attention of each document alone: in f64, forward and backward.
#include <gtest/gtest.h>

#include <numeric>

#include "cpu/derivative.h"
#include "cpu/lab.h"

namespace octet::BACKEND {
namespace {

using Lengths = std::vector<std::vector<int64_t>>;  // of the documents of each sequence

struct Pass {  // forward and backward of one call
  Tensor qkv, d_o, o, lse, dqkv;
  void run(Lab& lab, const Attention& a) {
    const int64_t N = a.B * a.T;
    o = lab.empty(qkv.dtype, {N, a.heads.H * a.heads.D});
    lse = lab.empty(wide(qkv.dtype), {a.B, a.heads.H, a.T});
    dqkv = lab.empty(qkv.dtype, {N, a.heads.width()});
    attention_forward(lab.stream(), o, lse, qkv, a, {});
    attention_backward(lab.stream(), {dqkv, d_o, o, lse, qkv, {}}, a);
  }
};

Tensor rows(Tensor x, int64_t first, int64_t n) { return x.part(first * x.cols(), {n, x.cols()}); }

void expect_near(Tensor got, Tensor want, const char* name) {
  const auto a = values(got), b = values(want);
  ASSERT_EQ(a.size(), b.size()) << name;
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-13) << name << ' ' << i;
}

void expect_each_alone(Heads heads, int64_t window, const Lengths& lengths) {
  Lab lab;
  const int64_t B = int64_t(lengths.size()), T = std::accumulate(lengths[0].begin(), lengths[0].end(), int64_t{0});
  const Attention packed{heads, B, T, window, 0.6, documents(lab, lengths)};
  Pass all{.qkv = lab.normal(DType::f64, {B * T, heads.width()}),
           .d_o = lab.normal(DType::f64, {B * T, heads.H * heads.D})};
  all.run(lab, packed);
  for (int64_t b = 0; b < B; ++b) {
    int64_t begin = 0;
    for (const int64_t n : lengths[size_t(b)]) {
      SCOPED_TRACE(testing::Message() << "sequence " << b << ", document at " << begin << " of " << n << " tokens");
      Pass one{.qkv = rows(all.qkv, b * T + begin, n), .d_o = rows(all.d_o, b * T + begin, n)};
      one.run(lab, {heads, 1, n, window, packed.scale});
      expect_near(rows(all.o, b * T + begin, n), one.o, "o");
      expect_near(rows(all.dqkv, b * T + begin, n), one.dqkv, "dqkv");
      for (int64_t h = 0; h < heads.H; ++h)
        expect_near(all.lse.part((b * heads.H + h) * T + begin, {n}), one.lse.part(h * n, {n}), "lse");
      begin += n;
    }
  }
}

// Documents of one token, of many blocks of queries, that end and begin at, before and after a block's border.
const Lengths kLengths{{1, 1, 63, 64, 1, 170, 30}, {330}, {200, 128, 1, 1}, {65, 64, 64, 137}};

TEST(OpDocuments, AttentionOfAPackedSequenceIsThatOfEachDocumentAlone) {
  for (const int64_t window : {0, 1, 40, 100, 1000}) {
    SCOPED_TRACE(window);
    expect_each_alone({.H = 4, .G = 2, .D = 5}, window, kLengths);
    expect_each_alone({.H = 3, .G = 3, .D = 4, .interleaved = true}, window, kLengths);
  }
}

TEST(OpDocuments, EveryTokenItsOwnDocumentSeesItsOwnValueOnly) {
  Lab lab;
  const Heads heads{.H = 2, .G = 1, .D = 3};
  const Attention a{heads, 1, 70, 0, 1, documents(lab, {std::vector<int64_t>(70, 1)})};
  Pass p{.qkv = lab.normal(DType::f64, {70, heads.width()}), .d_o = lab.normal(DType::f64, {70, 6})};
  p.run(lab, a);
  for (int64_t t = 0; t < 70; ++t)
    for (int64_t i = 0; i < 6; ++i)
      EXPECT_EQ(p.o.ptr<double>()[t * 6 + i], p.qkv.ptr<double>()[t * heads.width() + heads.v(0) + i % 3]);
}

TEST(OpDocuments, OneDocumentIsPlainCausalAttention) {
  Lab lab;
  const Heads heads{.H = 4, .G = 1, .D = 8};
  for (const int64_t window : {0, 70}) {
    Pass a{.qkv = lab.normal(DType::f32, {2 * 150, heads.width()}), .d_o = lab.normal(DType::f32, {2 * 150, 32})};
    Pass b = a;
    a.run(lab, {heads, 2, 150, window, 0.4, documents(lab, {{150}, {150}})});
    b.run(lab, {heads, 2, 150, window, 0.4});
    EXPECT_TRUE(same_bits(a.o, b.o) && same_bits(a.lse, b.lse) && same_bits(a.dqkv, b.dqkv)) << window;
  }
}

TEST(OpDocuments, BackwardIsTheDerivative) {
  Lab lab;
  Threads one{1};
  const Heads heads{.H = 4, .G = 2, .D = 3};
  for (const int64_t window : {0, 4}) {
    const Attention a{heads, 2, 15, window, 0.7, documents(lab, {{7, 1, 5, 2}, {3, 12}})};
    Pass p{.qkv = lab.normal(DType::f64, {30, heads.width()}), .d_o = lab.normal(DType::f64, {30, 12})};
    p.run(lab, a);
    const Tensor gradient = lab.copy(p.dqkv);
    const auto loss = [&] {
      attention_forward(lab.stream(), p.o, p.lse, p.qkv, a, {});
      return dot(p.o, p.d_o);
    };
    expect_derivative(std::vector{Variable{"qkv", span_of(p.qkv), span_of(gradient)}}, loss, {.samples = 400});
  }
}

// What the data layer must never hand out would read outside of the sequence.
TEST(OpDocuments, DocumentsBeyondTheirSequenceAreRefused) {
  Lab lab;
  const Heads heads{.H = 1, .G = 1, .D = 2};
  const Tensor qkv = lab.normal(DType::f64, {3, 6}), o = lab.empty(DType::f64, {3, 2}),
               lse = lab.empty(DType::f64, {3});
  for (const std::vector<int32_t>& bad :
       {std::vector<int32_t>{0, 0, 0, 3, 3, 4}, {0, 2, 0, 3, 3, 3}, {0, 0, 0, 3, 1, 3}, {-1, 0, 0, 3, 3, 3}}) {
    const Tensor d = lab.of(bad).as(DType::i32, {2, 1, 3});
    EXPECT_ANY_THROW(attention_forward(lab.stream(), o, lse, qkv, {heads, 1, 3, 0, 1, d}, {})) << bad[5];
  }
}

}  // namespace
}  // namespace octet::BACKEND
