// The plan engine deals the rows of experts out evenly, filled up as the experts' buffers are.
#include <gtest/gtest.h>

#include "device/plan.h"
#include "ops/grouped.h"

namespace octet::BACKEND {
namespace {

struct GroupedCounts : testing::Test {
  static constexpr int64_t E = 3, R = 160, I = 8, O = 16;
  Device device{{.target = {.cuda = true, .compute_capability = 90, .multiprocessors = 132}}};
  Stream s{device};
  Arena arena{s, "test", size_t{1} << 50};
  Tensor make(DType t, Shape shape) { return arena.alloc(t, shape); }
  ExpertRows rows(int64_t assignments) { return {.offset = make(DType::i32, {E + 1}), .assignments = assignments}; }
};

TEST_F(GroupedCounts, RowsOfAProduct) {
  const std::vector<Factor> w(E, {make(DType::bf16, {O, I})});
  const Tensor x = make(DType::bf16, {R, I}), y = make(DType::bf16, {R, O});
  grouped_gemm(s, {.d = y, .a = {x}, .b = w, .rows = rows(100)});  // 33, 33 and 34 of them: 64 rows each
  const WorkLog work = device.take_work();
  const Work& g = work[size_t(Kernel::gemm_bf16)];
  EXPECT_EQ(g.calls, 1);
  EXPECT_EQ(g.flops, 2. * 192 * I * O);
  EXPECT_EQ(g.bytes, 2. * (192 * I + E * I * O + R * O));
  EXPECT_EQ(work[size_t(Kernel::copy)].calls, 0);                // nothing comes to the host
  EXPECT_TRUE(take_products(device).empty());                    // and nothing is to be tuned
  grouped_gemm(s, {.d = y, .a = {x}, .b = w, .rows = rows(2)});  // one expert has none
  EXPECT_EQ(device.take_work()[size_t(Kernel::gemm_bf16)].flops, 2. * 64 * I * O);
}

TEST_F(GroupedCounts, SumsOfAGradient) {
  const std::vector<Tensor> dw(E, make(DType::f32, {O, I}));
  const GroupedGradient g{.d = dw, .a = {make(DType::e5m2, {O, R})}, .b = {make(DType::e4m3, {I, R})}, .rows = rows(2)};
  grouped_gradient(s, g);
  const Work w = device.take_work()[size_t(Kernel::gemm_fp8)];
  EXPECT_EQ(w.flops, 2. * 64 * I * O);
  EXPECT_EQ(w.bytes, 64. * (I + O) + 2 * 2 * 4. * I * O);
}

TEST_F(GroupedCounts, RefusesShapesThatDoNotFit) {
  const std::vector<Factor> w(E, {make(DType::bf16, {O, I})}), few(2, w[0]), other(E, {make(DType::bf16, {O, I + 1})});
  const Tensor x = make(DType::bf16, {R, I}), y = make(DType::bf16, {R, O});
  for (const auto* b : {&few, &other})
    EXPECT_THROW(grouped_gemm(s, {.d = y, .a = {x}, .b = *b, .rows = rows(9)}), Error);
  const std::vector<Tensor> dw(E, make(DType::f32, {O, I}));
  EXPECT_THROW(grouped_gradient(s, {.d = dw,
                                    .a = {make(DType::bf16, {R, O}), true},
                                    .b = {make(DType::bf16, {R, I + 8}), true},
                                    .rows = rows(9)}),
               Error);
}

}  // namespace
}  // namespace octet::BACKEND
