// cuBLASLt plans of matrix products are tuned once, found again, and travel as text: in the plan
// cache and in checkpoints.
#define BACKEND gpu
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/files.h"
#include "gpu/machine.h"
#include "ops/gpu/gemm_plans.h"
#include "ops/tune.h"

namespace octet::gpu {
namespace {

class GemmPlans : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_available()) GTEST_SKIP() << "no GPU";
    path = (std::filesystem::temp_directory_path() /
            concat("octet_plans_", ::testing::UnitTest::GetInstance()->random_seed(), "_", uint64_t(this)))
               .string();
  }
  void TearDown() override {
    if (!path.empty()) std::filesystem::remove(path);
  }
  static std::vector<ProductShape> shapes() {
    return {{.M = 256, .N = 512, .K = 1024, .a = DType::bf16, .b = DType::bf16, .d = DType::bf16},
            {.M = 512, .N = 256, .K = 128, .a = DType::f32, .b = DType::f32, .d = DType::f32, .accumulate = true}};
  }
  static Values run(Machine& m) {
    const Tensor y = m.tensor(DType::bf16, {256, 512});
    gemm(m.stream, {.d = y,
                    .a = {m.upload(DType::bf16, {256, 1024}, normals(256 * 1024, 1))},
                    .b = {m.upload(DType::bf16, {512, 1024}, normals(512 * 1024, 2))}});
    return m.download(y);
  }
  std::string path;
};

TEST_F(GemmPlans, AreTunedOnceAndReadFromTheCacheThen) {
  Machine first({.plan_cache = path});
  tune_products(first.stream, shapes());
  const std::string plans = export_plans(first.device), file = read_file(path);
  EXPECT_EQ(std::count(plans.begin(), plans.end(), '\n'), 2);
  EXPECT_EQ(file, plans);
  Machine second({.plan_cache = path});
  tune_products(second.stream, shapes());
  EXPECT_EQ(export_plans(second.device), plans);
  EXPECT_EQ(run(second), run(first));
}

// gemm() finds the plan that was tuned for its ProductShape, and chooses none anew.
TEST_F(GemmPlans, AreFoundByTheProductsTheyWereTunedFor) {
  Machine m;
  const Tensor a = m.tensor(DType::bf16, {64, 128}), b = m.tensor(DType::bf16, {256, 128});
  const Tensor d = m.tensor(DType::bf16, {64, 256}), wide = m.tensor(DType::f32, d.shape);
  const Tensor bias = m.tensor(DType::bf16, {256}), wide_bias = m.tensor(DType::f32, {256});
  const Factor q{m.tensor(DType::e4m3, a.shape), false, m.scalar(1)},
      w{m.tensor(DType::e4m3, b.shape), false, m.scalar(1)};
  for (const GemmArgs& g :
       {GemmArgs{.d = d, .a = {a}, .b = {b}, .fast = true},
        {.d = d, .a = {a}, .b = {b}, .bias = wide_bias},
        {.d = d, .a = {a}, .b = {b}, .residual = m.tensor(DType::bf16, d.shape), .bias = bias},
        {.d = d, .a = {a}, .b = {b}, .residual = m.tensor(DType::bf16, d.shape), .accumulate = true},
        {.d = d, .a = q, .b = w, .bias = bias, .fast = true},
        {.d = wide, .a = q, .b = w, .bias = wide_bias}}) {
    const std::vector<ProductShape> met{shape_of(g)};
    tune_products(m.stream, met);
    const std::string plans = export_plans(m.device);
    gemm(m.stream, g);
    EXPECT_EQ(export_plans(m.device), plans);
  }
}

TEST_F(GemmPlans, TravelAsTextAndGiveTheSameBits) {
  Machine first, second;
  tune_products(first.stream, shapes());
  const Values y = run(first);
  import_plans(second.device, export_plans(first.device));
  EXPECT_EQ(export_plans(second.device), export_plans(first.device));
  EXPECT_EQ(run(second), y);
}

TEST_F(GemmPlans, OfAnUnreadableFileAreChosenAnewAndForeignOnesAreKept) {
  const std::string foreign =
      R"({"algo":")" + std::string(128, '0') +
      R"(","card":"Abacus","cublaslt":1,"deterministic":true,"product":"256x512x1024 bf16 bf16 bf16","tflops":1.0})";
  write_file(path, "no plan\n{\"card\": 3}\n" + foreign + "\n");
  Machine m({.plan_cache = path});
  EXPECT_EQ(export_plans(m.device), "");
  tune_products(m.stream, shapes());
  EXPECT_EQ(read_file(path), foreign + "\n" + export_plans(m.device));
}

TEST_F(GemmPlans, OfProductsThatWereNeverTunedAreExportedToo) {
  Machine m;
  run(m);
  const std::string plans = export_plans(m.device);
  EXPECT_NE(plans.find("256x512x1024 bf16 bf16 bf16"), plans.npos) << plans;
}

// gemm() accumulates in fp32, also where the library splits a long sum and results are bf16.
TEST_F(GemmPlans, AddSplitSumsInFp32) {
  Machine m({.deterministic = false});
  const auto check = [&](const ProductShape& shape) {
    const std::vector<cublasLtMatmulAlgo_t> algos = Product({.shape = shape}).proposals(m.device, 16);
    EXPECT_FALSE(algos.empty());
    for (const cublasLtMatmulAlgo_t& algo : algos) {
      uint32_t scheme = 0;
      size_t size = 0;
      ASSERT_EQ(cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                     sizeof scheme, &size),
                CUBLAS_STATUS_SUCCESS);
      EXPECT_TRUE(scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
          << scheme;
    }
  };
  constexpr DType t = DType::bf16;
  check({.M = 768, .N = 768, .K = 16384, .a = t, .b = t, .d = t, .a_transposed = true, .b_transposed = true});
  check({.M = 1024, .N = 768, .K = 2048, .a = t, .b = t, .d = t});
  check({.M = 64, .N = 128, .K = 65536, .a = t, .b = t, .d = t});
}

// A plan cache of a program that allowed such sums may hold them.
TEST_F(GemmPlans, ThatAddSplitSumsInBf16AreRefusedAndChosenAnew) {
  Machine m;
  const ProductKey key{shapes()[0]};
  Product product(key);
  for (cublasLtMatmulAlgo_t algo : product.proposals(m.device, 16)) {
    EXPECT_TRUE(product.accepts(m.device, algo));
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    const int32_t parts = 2;
    ASSERT_EQ(
        cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme),
        CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_FALSE(product.accepts(m.device, algo));
    ProductPlans::of(m.device).choose(key, {algo, 1000});
  }
  const std::string refused = export_plans(m.device);
  ASSERT_NE(refused, "");
  tune_products(m.stream, shapes());
  EXPECT_EQ(export_plans(m.device).find(refused), std::string::npos);
  EXPECT_TRUE(ProductPlans::of(m.device).has(key));
}

}  // namespace
}  // namespace octet::gpu
