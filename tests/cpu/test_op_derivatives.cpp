// Each backward is the derivative of its forward: f64, by differences.
#include "cpu/derivative.h"
#include "cpu/lab.h"

namespace octet::BACKEND {
namespace {

constexpr DType kF64 = DType::f64;

class OpDerivatives : public testing::Test {
 protected:
  Threads one{1};  // the tensors are tiny
  Lab lab;
  Stream& s = lab.stream();
  Tensor f64(Shape shape) { return lab.empty(kF64, shape); }
  Tensor normal(Shape shape, double std = 1, double mean = 0) { return lab.normal(kF64, shape, std, mean); }
  static Variable variable(std::string name, Tensor x, Tensor dx) { return {std::move(name), span_of(x), span_of(dx)}; }
};

TEST_F(OpDerivatives, OfRmsnormAreExact) {
  const int64_t N = 19, C = 23;
  const Tensor x = normal({N, C}), w = normal({C}, 0.5, 1), dy = normal({N, C}), y = f64({N, C}), rstd = f64({N});
  const Tensor dx = lab.zeros(kF64, {N, C}), dw = lab.zeros(kF64, {C});
  const auto loss = [&] {
    rmsnorm_forward(s, {.plain = y}, rstd, x, w, 1e-2);
    return dot(y, dy);
  };
  loss();
  rmsnorm_backward(s, {dx, dw, dy, x, w, rstd, lab.partial(kF64, C)});
  expect_derivative(std::vector{variable("x", x, dx), variable("w", w, dw)}, loss);
}

TEST_F(OpDerivatives, OfLayernormAreExact) {
  const int64_t N = 19, C = 23;
  const Tensor x = normal({N, C}, 1, 0.5), w = normal({C}, 0.5, 1), b = normal({C}), dy = normal({N, C});
  const Tensor y = f64({N, C}), mean = f64({N}), rstd = f64({N});
  const Tensor dx = lab.zeros(kF64, {N, C}), dw = lab.zeros(kF64, {C}), db = lab.zeros(kF64, {C});
  const auto loss = [&] {
    layernorm_forward(s, {{.plain = y}, mean, rstd, x, w, b, 1e-2});
    return dot(y, dy);
  };
  loss();
  layernorm_backward(s, {dx, dw, db, dy, x, w, mean, rstd, lab.partial(kF64, C, 2)});
  expect_derivative(std::vector{variable("x", x, dx), variable("w", w, dw), variable("b", b, db)}, loss);
}

TEST_F(OpDerivatives, OfNormsAreAddedToWhatIsThere) {
  const int64_t N = 5, C = 7;
  const Tensor x = normal({N, C}), w = normal({C}), dy = normal({N, C}), y = f64({N, C}), rstd = f64({N});
  rmsnorm_forward(s, {.plain = y}, rstd, x, w, 1e-2);
  const Tensor dx = lab.zeros(kF64, {N, C}), dw = lab.zeros(kF64, {C});
  const Tensor dx1 = normal({N, C}), dw1 = normal({C}), dx0 = lab.copy(dx1), dw0 = lab.copy(dw1);
  rmsnorm_backward(s, {dx, dw, dy, x, w, rstd, lab.partial(kF64, C)});
  rmsnorm_backward(s, {dx1, dw1, dy, x, w, rstd, lab.partial(kF64, C)});
  for (size_t i = 0; i < size_t(N * C); ++i) EXPECT_NEAR(values(dx1)[i], values(dx0)[i] + values(dx)[i], 1e-14);
  for (size_t i = 0; i < size_t(C); ++i) EXPECT_NEAR(values(dw1)[i], values(dw0)[i] + values(dw)[i], 1e-13);
}

TEST_F(OpDerivatives, OfRopeAreExact) {
  for (const bool interleaved : {false, true}) {
    const Heads heads{.H = 4, .G = interleaved ? 4 : 2, .D = 10, .interleaved = interleaved};
    const int64_t N = 6, W = heads.width();
    const Rope rope{rope_table(lab, kF64, 8, 6), heads, 3,
                    4};  // 6 of 10 dimensions turn; two sequences from position 4
    const Tensor x = normal({N, W}), y = f64({N, W}), dy = normal({N, W}), dx = f64({N, W});
    const auto loss = [&] {
      std::memcpy(y.data, x.data, x.bytes());
      rope_forward(s, y, rope);
      return dot(y, dy);
    };
    rope_backward(s, {.plain = dx}, dy, rope);
    expect_derivative(std::vector{variable("x", x, dx)}, loss);
    rope_backward(s, {.plain = dy}, dy, rope);  // in place
    EXPECT_TRUE(same_bits(dx, dy));
  }
}

struct AttentionCase {
  int64_t G, T, D, window;
  bool interleaved;
};
class AttentionDerivative : public OpDerivatives, public testing::WithParamInterface<AttentionCase> {};

TEST_P(AttentionDerivative, IsExact) {
  const AttentionCase c = GetParam();
  const Heads heads{.H = 4, .G = c.G, .D = c.D, .interleaved = c.interleaved};
  const Attention a{heads, 2, c.T, c.window, 0.7};
  const int64_t N = a.B * a.T, W = heads.width(), O = heads.H * heads.D;
  const Tensor x = normal({N, W}), o = f64({N, O}), d_o = normal({N, O}), lse = f64({a.B, heads.H, a.T});
  const Tensor dx = f64({N, W});
  const auto loss = [&] {
    attention_forward(s, o, lse, x, a, {});
    return dot(o, d_o);
  };
  loss();
  attention_backward(s, {dx, d_o, o, lse, x, {}}, a);
  expect_derivative(std::vector{variable("qkv", x, dx)}, loss);
}
INSTANTIATE_TEST_SUITE_P(Cases, AttentionDerivative,
                         testing::Values(AttentionCase{1, 13, 6, 0, false}, AttentionCase{2, 13, 5, 0, false},
                                         AttentionCase{4, 13, 6, 0, false}, AttentionCase{4, 13, 7, 0, true},
                                         AttentionCase{2, 13, 6, 4, false}, AttentionCase{4, 9, 3, 1, true},
                                         AttentionCase{2, 131, 3, 0, false}, AttentionCase{2, 131, 3, 70, false},
                                         AttentionCase{1, 1, 2, 0, false}));

TEST_F(OpDerivatives, OfSwigluAreExact) {
  const int64_t N = 7, F = 11;
  const Tensor gu = normal({N, 2 * F}, 2), dy = normal({N, F}), y = f64({N, F}), dgu = f64({N, 2 * F});
  swiglu_backward(s, {.plain = dgu}, dy, gu);
  expect_derivative(std::vector{variable("gu", gu, dgu)}, [&] {
    swiglu_forward(s, {.plain = y}, gu);
    return dot(y, dy);
  });
}

TEST_F(OpDerivatives, OfGeluAreExact) {
  const int64_t N = 7, F = 11;
  for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
    const Tensor x = normal({N, F}, 2), dy = normal({N, F}), y = f64({N, F}), dx = f64({N, F});
    gelu_backward(s, {.plain = dx}, dy, x, kind);
    expect_derivative(std::vector{variable("x", x, dx)}, [&] {
      gelu_forward(s, {.plain = y}, x, kind);
      return dot(y, dy);
    });
  }
}

TEST_F(OpDerivatives, OfCrossEntropyAreExact) {
  const int64_t N = 9, V = 16, vocabulary = 13;
  const Tensor x = normal({N, V}, 2), losses = f64({N}), total = f64({1});
  const Tensor targets = lab.of<int32_t>({0, 12, -100, 5, 5, -1, 7, 3, 12});
  const double factor = 0.37;
  const auto loss = [&] {
    cross_entropy(s, losses, x, targets, vocabulary, factor, Backward::no);
    *total.ptr<double>() = 0;
    sum(s, total, losses);
    return factor * *total.ptr<double>();
  };
  const Tensor dx = lab.copy(x);
  cross_entropy(s, losses, dx, targets, vocabulary, factor, Backward::yes);
  expect_derivative(std::vector{variable("logits", x, dx)}, loss);
  for (int64_t n = 0; n < N; ++n)
    for (int64_t v = 0; v < V; ++v)
      if (v >= vocabulary || targets.ptr<int32_t>()[n] < 0) { EXPECT_EQ(dx.ptr<double>()[n * V + v], 0); }
  EXPECT_EQ(losses.ptr<double>()[2], 0);
}

TEST_F(OpDerivatives, OfTheEmbeddingAreExact) {
  const int64_t N = 8, V = 6, C = 5;
  const Tensor tokens = lab.of<int32_t>({3, 0, 3, 5, 0, 3, 1, 5}), order = lab.of<int32_t>({1, 4, 6, 0, 2, 5, 3, 7});
  const Tensor w = normal({V, C}), dw = lab.zeros(kF64, {V, C}), dy = normal({N, C}), y = f64({N, C});
  embedding_backward(s, dw, dy, tokens, order);
  expect_derivative(std::vector{variable("w", w, dw)}, [&] {
    embedding_forward(s, y, tokens, w);
    return dot(y, dy);
  });
}

TEST_F(OpDerivatives, OfALinearLayerAreItsTwoOtherProducts) {
  const int64_t N = 9, C = 12, O = 7;
  const Tensor x = normal({N, C}), w = normal({O, C}), b = normal({O}), dy = normal({N, O}), y = f64({N, O});
  const Tensor dx = f64({N, C}), dw = lab.zeros(kF64, {O, C}), db = lab.zeros(kF64, {O});
  gemm(s, {.d = dx, .a = {dy}, .b = {w, true}});
  gemm(s, {.d = dw, .a = {dy, true}, .b = {x, true}, .accumulate = true});
  column_sum(s, db, dy, lab.partial(kF64, O));
  expect_derivative(std::vector{variable("x", x, dx), variable("w", w, dw), variable("b", b, db)}, [&] {
    gemm(s, {.d = y, .a = {x}, .b = {w}, .bias = b});
    return dot(y, dy);
  });
}

TEST(Derivative, TheCheckSeesAWrongGradient) {
  double x = 0.3;
  const auto [whole, half] = difference_errors(x, std::cos(x) * 1.0001, 1e-3, [&] { return std::sin(x); });
  EXPECT_LT(whole / half, 1.1);
  EXPECT_GT(half, 1e-9);
}

}  // namespace
}  // namespace octet::BACKEND
