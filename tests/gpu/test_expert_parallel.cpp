// Experts that are spread over two cards train the model of one card; so does a model with an odd number of experts
// that are not, and one whose experts have scales of their own.
#define BACKEND gpu
#include "cpu/tiny_model.h"
#include "ranks.h"
#include "train/agreement.h"

namespace octet::gpu {
namespace {

// Tokens enough that every expert has some; one micro-batch a step, as accumulation would cut the balancing loss
// otherwise on other numbers of ranks.
RunConfig mixtral(int ranks, const Changes& changes) {
  return tiny_config(with({"device=cuda", "model.model_type=mixtral", "model.hidden_size=64",
                           "model.intermediate_size=96", "model.num_local_experts=4", "model.num_experts_per_tok=2",
                           "model.router_aux_loss_coef=0.05", "training.seq_len=64", "memory.poison=true",
                           "training.deterministic=true", concat("training.micro_batch_size=", 4 / ranks)},
                          changes));
}
std::vector<double> losses(int ranks, const Changes& changes) {
  std::vector<double> all;
  run_ranks(ranks, [&](Host& host) {
    const RunConfig config = mixtral(ranks, changes);
    TinyTrainer t(config, host);
    const std::vector<double> mine = t.run(6);
    EXPECT_NO_THROW(check_agreement(t.session));
    if (host.rank() == 0) all = mine;
  });
  return all;
}

struct Format {
  const char* name;
  double tolerance;
  Changes changes;
};
const Format kFormats[] = {
    {"fp32", 1e-4, {"precision.param_dtype=fp32"}},
    {"bf16", 2e-2, {"precision.param_dtype=bf16"}},
    {"fp8", 3e-2, {"precision.param_dtype=bf16", "fp8.enabled=true"}},
    {"fp8 per expert", 2e-2, {"precision.param_dtype=bf16", "fp8.enabled=true", "fp8.moe_per_expert_scales=true"}}};

TEST(ExpertParallel, TwoCardsTrainTheModelOfOne) {
  if (device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  for (const Format& f : kFormats) {
    const std::vector<double> one = losses(1, f.changes);
    EXPECT_LT(one.back(), one.front());
    for (const char* stage : {"0", "1", "2", "3"})
      for (const char* buffer : {"1", "2"}) {
        SCOPED_TRACE(concat(f.name, ", stage ", stage, ", buffer ", buffer));
        const Changes how{"parallel.expert_parallel=2", concat("parallel.zero_stage=", stage),
                          concat("parallel.expert_buffer=", buffer)};
        const std::vector<double> two = losses(2, with(f.changes, how));
        expect_near_all(two, one, f.tolerance);
        EXPECT_EQ(two, losses(2, with(f.changes, how)));  // the same bits again
      }
  }
}

TEST(ExpertParallel, AnyNumberOfExpertsLearns) {
  if (device_count() < 1) GTEST_SKIP() << "no GPU";
  for (const Format& f : kFormats)
    for (const char* experts : {"3", "5", "7"}) {
      const Changes changes = with(f.changes, {concat("model.num_local_experts=", experts)});
      const std::vector<double> here = losses(1, changes);
      EXPECT_LT(here.back(), here.front()) << f.name << ' ' << experts;
      for (double loss : here) EXPECT_TRUE(std::isfinite(loss)) << f.name << ' ' << experts;
    }
}

}  // namespace
}  // namespace octet::gpu
