// Which cards a build is refused on, what is done as on smaller ones, and the largest grids.
#define BACKEND gpu
#include <gtest/gtest.h>

#include <cmath>

#include "device/gpu_code.h"
#include "gpu/machine.h"
#include "ops/gpu/gemm_plain.h"
#include "ops/moe.h"
#include "ops/workspace.h"

namespace octet::gpu {
namespace {

TEST(Code, RunsWhereItsKernelsAreWhole) {
  EXPECT_EQ(unfit(80, {80, false}), "");
  EXPECT_EQ(unfit(86, {80, false}), "");
  EXPECT_EQ(unfit(89, {80, false}), "");
  EXPECT_EQ(unfit(90, {90, true}), "");
  EXPECT_EQ(unfit(100, {100, false}), "");
  EXPECT_EQ(unfit(120, {90, false}), "");  // from PTX
}
TEST(Code, IsRefusedWhereItWouldComputeWrongNumbers) {
  EXPECT_NE(unfit(100, {}), "");           // none: Hopper's own does not run there
  EXPECT_NE(unfit(90, {90, false}), "");   // built for 90: kernels for 90a are empty
  EXPECT_NE(unfit(90, {80, false}), "");   // from PTX
  EXPECT_NE(unfit(120, {80, false}), "");  // likewise: launch_pdl's kernels would not wait
  EXPECT_EQ(architecture_for(90), "90a-real");
  EXPECT_EQ(architecture_for(120), "120-real");
}
TEST(Code, SharedMemoryIsThatOfTheTables) {
  EXPECT_EQ(shared_room(80), 166912);
  EXPECT_EQ(shared_room(90), 232448);
  EXPECT_EQ(shared_room(100), 232448);
  for (int small : {86, 89, 120, 121, 999}) EXPECT_EQ(shared_room(small), 101376) << small;
}

class Cards : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_available()) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(Cards, ThisOneRunsThisBuild) {
  const Machine m;
  EXPECT_GE(m.device.target().compute_capability, 80);
}

// Of rows of logits that stay in shared memory on one card and not on the other.
TEST_F(Cards, LossHasTheSameBitsOnAll) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const int64_t V : {int64_t{1000}, int64_t{15000}, int64_t{25600}, int64_t{50304}}) {
      std::vector<Values> found;
      for (int capability : {0, 80, 86}) {
        Machine m({.target = {.compute_capability = capability}});
        const Tensor logits = m.upload(t, {5, V}, normals(5 * V, 3)), losses = m.tensor(DType::f32, {5});
        const std::vector<int32_t> targets{0, int32_t(V) - 1, 7, -100, 500};
        const Tensor y = m.tensor(DType::i32, {5});
        copy_to_device(m.stream, y.data, targets.data(), y.bytes());
        cross_entropy(m.stream, losses, logits, y, V, 0.25, Backward::yes);
        found.push_back(m.download(losses));
        for (double v : m.download(logits)) found.back().push_back(v);
      }
      EXPECT_EQ(found[0], found[1]) << V;
      EXPECT_EQ(found[0], found[2]) << V;
    }
}

TEST_F(Cards, NormsAreTheSameOnAll) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const int64_t C : {int64_t{768}, int64_t{4096}, int64_t{8192}}) {
      std::vector<Values> found;
      for (int capability : {0, 80, 86}) {
        Machine m({.target = {.compute_capability = capability}});
        constexpr int64_t N = 300;
        const Tensor x = m.upload(t, {N, C}, normals(N * C, 1)), dy = m.upload(t, {N, C}, normals(N * C, 2)),
                     w = m.upload(t, {C}, normals(C, 3)), dx = m.tensor(t, {N, C}), y = m.tensor(t, {N, C}),
                     mean = m.tensor(DType::f32, {N}), rstd = m.tensor(DType::f32, {N}),
                     sums = m.tensor(DType::f32, {2, C}),
                     partial = m.tensor(DType::f32, {2 * partial_rows(m.device.target()), C});
        fill_zero(m.stream, dx), fill_zero(m.stream, sums);
        layernorm_forward(m.stream, {{.plain = y}, mean, rstd, x, w, w, 1e-5});
        layernorm_backward(m.stream, {dx, sums.row_range(0, 1), sums.row_range(1, 1), dy, x, w, mean, rstd, partial});
        found.push_back(m.download(dx));
        for (double v : m.download(sums)) found.back().push_back(v);
      }
      const double most = t == DType::bf16 ? 1e-3 : 1e-6;  // sums in another order
      EXPECT_LE(relative_error(found[1], found[0]), most) << C;
      EXPECT_LE(relative_error(found[2], found[0]), most) << C;
    }
}

// More rows than a grid's second dimension has blocks for.
TEST_F(Cards, ProducersOfManyRows) {
  Machine m;
  Stream& s = m.stream;
  constexpr int64_t N = 65535 * 128 + 5000, C = 8;  // rows; of which the last have others behind them
  const Tensor x = m.tensor(DType::bf16, {N, C});
  init_normal(s, x, 0, 1, 1, 1, 0);
  const float* scale = m.scalar(30);
  const auto forms = [&](int64_t n) {
    return Operand{m.tensor(DType::bf16, {n, C}),
                   m.tensor(DType::e4m3, {n, C}),
                   m.tensor(DType::e4m3, {C, n}),
                   m.tensor(DType::f32, {4}).ptr<float>(),
                   {const_cast<float*>(scale), nullptr, DType::e4m3}};
  };
  const auto bits = [&](Tensor t) {
    std::vector<char> b(t.bytes());
    copy_to_host(s, b.data(), t.data, b.size());
    s.synchronize();
    return b;
  };
  const Operand all = forms(N);
  for (const Tensor& t : {all.plain, all.q, all.q_t}) fill_byte(s, t.data, 0x55, t.bytes());
  quantize(s, all, x);
  const Tensor transposed = m.tensor(DType::e4m3, {C, N});
  fill_byte(s, transposed.data, 0x55, transposed.bytes());
  transpose(s, transposed, all.q);
  EXPECT_EQ(bits(transposed), bits(all.q_t));
  for (const int64_t first : {int64_t{0}, N / 2 / 8 * 8, N - 1024}) {
    const Operand some = forms(1024);
    quantize(s, some, x.row_range(first, 1024));
    EXPECT_EQ(bits(all.plain.row_range(first, 1024)), bits(some.plain)) << first;
    EXPECT_EQ(bits(all.q.row_range(first, 1024)), bits(some.q)) << first;
    for (int64_t c = 0; c < C; ++c)
      EXPECT_EQ(bits(all.q_t.part(c * N + first, {1024})), bits(some.q_t.row_range(c, 1))) << first << ", " << c;
  }
  const Tensor odd = all.q.part(0, {N - 1, C}), odd_transposed = transposed.part(0, {C, N - 1});  // one by one
  transpose(s, odd_transposed, odd);
  for (const int64_t c : {int64_t{0}, C - 1})
    EXPECT_EQ(bits(odd_transposed.part(c * (N - 1) + N - 1025, {1024})), bits(all.q_t.part(c * N + N - 1025, {1024})));
}

TEST_F(Cards, PlainProductsOfManyColumns) {
  Machine m;
  constexpr int64_t M = 3, N = 65535 * 16 + 37, K = 5;
  const Values a = normals(M * K, 1), b = normals(N * K, 2);
  const Tensor d = m.tensor(DType::f32, {M, N});
  fill_byte(m.stream, d.data, 0xff, d.bytes());
  plain_product(m.stream, {.d = d, .a = {m.upload(DType::f32, {M, K}, a)}, .b = {m.upload(DType::f32, {N, K}, b)}}, {});
  const Values found = m.download(d);
  double worst = 0;
  for (int64_t i = 0; i < M; ++i)
    for (int64_t n = 0; n < N; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += double(float(a[size_t(i * K + k)])) * double(float(b[size_t(n * K + k)]));
      worst = std::max(worst, std::isnan(found[size_t(i * N + n)]) ? 1 : std::abs(found[size_t(i * N + n)] - sum));
    }
  EXPECT_LE(worst, 1e-5);
}

// A token's experts differ whatever its logits are, and a NaN among them reaches all of its weights.
TEST_F(Cards, RoutesOfNaN) {
  Machine m;
  constexpr int64_t E = 6, K = 4;
  const double nan = std::nan(""), inf = INFINITY;
  const Values logits{nan, 5, 3, 7, 1, 2, 1, nan, 2, 0, nan, 3, nan, nan, nan, nan, nan, nan, inf, nan, 1, 1, -inf, 0};
  const int64_t N = int64_t(logits.size()) / E;
  const Tensor x = m.upload(DType::f32, {N, E}, logits);
  const MoeRoute route{m.tensor(DType::i32, {N, K}), m.tensor(DType::f32, {N, K}), m.tensor(DType::f32, {N, E}),
                       m.tensor(DType::f32, {N})};
  moe_route(m.stream, route, x, x);
  std::vector<int32_t> expert(size_t(N * K));
  copy_to_host(m.stream, expert.data(), route.expert.data, route.expert.bytes());
  m.stream.synchronize();
  EXPECT_EQ(expert, (std::vector<int32_t>{0, 3, 1, 2, 1, 4, 5, 2, 0, 1, 2, 3, 0, 1, 2, 3}));
  for (double w : m.download(route.weight)) EXPECT_TRUE(std::isnan(w));
}

}  // namespace
}  // namespace octet::gpu
