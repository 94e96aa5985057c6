// What a plan says of a run: the parameters and FLOPs of known models by their closed formulas, and which kernel class
// does them. That its memory is a run's, to the byte, is tests/cpu/test_model_memory.cpp.
#include <gtest/gtest.h>

#include "cli/ranks.h"

namespace octet {
namespace {

const Target kHopper{.cuda = true, .compute_capability = 90, .multiprocessors = 132};

struct Planned {
  RunConfig config;
  PlanResult plan;
  double tokens;  // of one rank
  double flops(Kernel k) const { return plan.work[size_t(k)].flops / tokens; }
  double all() const {
    double sum = 0;
    for (const Work& w : plan.work) sum += w.flops / tokens;
    return sum;
  }
};
Planned planned(const std::string& name, const std::vector<std::string>& changes = {}, int ranks = 1) {
  Planned p{load_config(std::string(CONFIGS) + "/" + name + ".json", changes), {}, 0};
  p.plan = plan::engine().plan(p.config, ranks, kHopper);
  p.tokens = double(tokens_per_step(p.config)) / ranks;
  return p;
}

TEST(PlanRun, Llama2_7bHasItsParametersAndFlops) {
  const Planned p = planned("llama2_7b");
  EXPECT_EQ(p.plan.parameters, 6738415616);
  EXPECT_EQ(p.all(), 42863689728.);
  EXPECT_EQ(token_flops(p.config, 1, kHopper, p.plan).causal, 42863689728.);
  EXPECT_EQ(token_flops(p.config, 1, kHopper, p.plan).full, 46084915200.);
}

TEST(PlanRun, OtherSizesHaveTheirParameters) {
  EXPECT_EQ(planned("llama2_13b").plan.parameters, 13015864320);
  EXPECT_EQ(planned("llama2_70b", {}, 64).plan.parameters, 68976648192);
}

// 6 FLOPs for each weight in a product and token, 6 L C T for causal attention; recomputation is not counted as needed.
TEST(PlanRun, FlopsAreTheClosedFormula) {
  for (const char* name : {"tiny_llama", "llama_124m", "llama_1b"}) {
    const Planned p = planned(name);
    const ModelConfig& m = p.config.model;
    const double C = double(m.hidden_size), L = double(m.num_layers), V = double((m.vocab_size + 127) / 128 * 128);
    const double kv = double(m.num_kv_heads * m.head_dim), F = double(m.intermediate_size),
                 T = double(*p.config.training.seq_len);
    const double weights = L * (2 * C * C + 2 * C * kv + 3 * C * F) + V * C;
    EXPECT_EQ(p.all(), 6 * weights + 6 * L * C * T) << name;
    const Planned again = planned(name, {"memory.recompute_blocks=" + std::to_string(m.num_layers)});
    EXPECT_GT(again.all(), p.all());
    EXPECT_NEAR(token_flops(again.config, 1, kHopper, again.plan).causal, p.all(), 1e-12 * p.all()) << name;
  }
}

TEST(PlanRun, Fp8ProductsAreThoseOfTheBlocks) {
  const Planned bf16 = planned("llama_1b"), fp8 = planned("llama_1b", {"fp8.enabled=true"});
  const ModelConfig& m = fp8.config.model;
  const double head = 6 * double(m.vocab_size * m.hidden_size);
  EXPECT_EQ(bf16.flops(Kernel::gemm_fp8), 0);
  EXPECT_EQ(fp8.flops(Kernel::gemm_bf16), head);
  EXPECT_EQ(fp8.flops(Kernel::gemm_fp8), bf16.flops(Kernel::gemm_bf16) - head);
  EXPECT_EQ(fp8.all(), bf16.all());
  const Planned some = planned("llama_1b", {"fp8.enabled=true", "fp8.bf16_first_layers=2", "fp8.bf16_last_layers=9"});
  EXPECT_DOUBLE_EQ(some.flops(Kernel::gemm_fp8), fp8.flops(Kernel::gemm_fp8) / 2);  // 11 of 22 blocks
  const Planned two_thirds =
      planned("llama_1b", {"fp8.enabled=true", "fp8.override_linear_precision=[false,false,true]"});
  EXPECT_DOUBLE_EQ(two_thirds.flops(Kernel::gemm_fp8), fp8.flops(Kernel::gemm_fp8) * 2 / 3);
}

// OpenLLaMA 3B has heads of 100. A card would refuse them in its first step.
TEST(PlanRun, HeadSizesThatNoKernelTakesAreRefusedForACard) {
  for (const auto& [size, taken] : {std::pair{100, false}, {264, false}, {80, true}, {256, true}}) {
    const RunConfig c = load_config(std::string(CONFIGS) + "/tiny_llama.json", {concat("model.head_dim=", size)});
    EXPECT_NO_THROW(plan::engine().plan(c, 1, {})) << size;
    try {
      plan::engine().plan(c, 1, kHopper);
      EXPECT_TRUE(taken) << size;
    } catch (const InputError& e) {
      EXPECT_FALSE(taken) << e.what();
      EXPECT_NE(std::string(e.what()).find(concat("is ", size)), std::string::npos) << e.what();
    }
  }
}

TEST(PlanRun, ShardingDividesWhatItSays) {
  const auto memory = [](int ranks, const char* stage) {
    return planned("llama_1b", {stage, "training.micro_batch_size=1"}, ranks).plan.memory;
  };
  const MemoryPlan whole = memory(1, "parallel.zero_stage=0");
  const double parameters = double(planned("llama_1b").plan.parameters);
  EXPECT_NEAR(double(whole[Memory::optimizer]), 12 * parameters, 0.001 * 12 * parameters);
  EXPECT_NEAR(double(whole[Memory::gradients]), 4 * parameters, 0.001 * 4 * parameters);
  for (const auto& [stage, gradients, weights] :
       {std::tuple{"parallel.zero_stage=0", false, false}, std::tuple{"parallel.zero_stage=1", false, false},
        std::tuple{"parallel.zero_stage=2", true, false}, std::tuple{"parallel.zero_stage=3", true, true}}) {
    const MemoryPlan eighth = memory(8, stage);
    const bool optimizer = std::string(stage).back() != '0';
    const auto share = [&](Memory m) { return double(eighth[m]) / double(whole[m]); };
    EXPECT_NEAR(share(Memory::optimizer), optimizer ? 0.125 : 1, 0.001) << stage;
    if (gradients) EXPECT_LT(share(Memory::gradients), 0.4) << stage;  // an eighth, and what is whole in turn
    else EXPECT_EQ(share(Memory::gradients), 1) << stage;
    if (weights) EXPECT_LT(share(Memory::weights), 0.3) << stage;
    else EXPECT_GE(share(Memory::weights), 0.99) << stage;
    EXPECT_EQ(eighth[Memory::saved], whole[Memory::saved]) << stage;
  }
}

}  // namespace
}  // namespace octet
