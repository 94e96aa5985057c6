// Expert parallelism over two cards trains the model of one card. So do, on one card, odd numbers of experts and
// experts with FP8 scales of their own.
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

// What each format is tried with, as it takes seconds to start two cards: fp32, whose bound is the closest, at every
// stage with either room for rows of experts; the two of FP8 likewise, between them. A run of each stage is repeated.
enum class Repeat { no, yes };
struct Spread {  // over two cards
  int stage, buffer;
  Repeat repeat = Repeat::no;
};
struct Format {
  const char* name;
  double tolerance;
  Changes changes;
  std::vector<Spread> spreads;
  std::vector<int> experts;  // odd numbers of them, on one card
};
const Changes kBf16{"precision.param_dtype=bf16"}, kFp8 = with(kBf16, {"fp8.enabled=true"});
const Format kFormats[] = {{"fp32",
                            1e-4,
                            {"precision.param_dtype=fp32"},
                            {{0, 1}, {0, 2}, {1, 1}, {1, 2}, {2, 1}, {2, 2}, {3, 1, Repeat::yes}, {3, 2, Repeat::yes}},
                            {3, 5, 7}},
                           {"bf16", 2e-2, kBf16, {{0, 1, Repeat::yes}, {3, 2}}, {5}},
                           {"fp8", 3e-2, kFp8, {{0, 2}, {1, 1, Repeat::yes}, {2, 2}, {3, 1}}, {3, 7}},
                           {"fp8 per expert",
                            2e-2,
                            with(kFp8, {"fp8.moe_per_expert_scales=true"}),
                            {{0, 1}, {1, 2}, {2, 1, Repeat::yes}, {3, 2}},
                            {5, 7}}};

TEST(ExpertParallel, TwoCardsTrainTheModelOfOne) {
  if (device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  for (const Format& f : kFormats) {
    const std::vector<double> one = losses(1, f.changes);
    EXPECT_LT(one.back(), one.front());
    for (const auto& [stage, buffer, repeat] : f.spreads) {
      SCOPED_TRACE(concat(f.name, ", stage ", stage, ", buffer ", buffer));
      const Changes how = with(f.changes, {"parallel.expert_parallel=2", concat("parallel.zero_stage=", stage),
                                           concat("parallel.expert_buffer=", buffer)});
      const std::vector<double> two = losses(2, how);
      expect_near_all(two, one, f.tolerance);
      if (repeat == Repeat::yes) {
        EXPECT_EQ(two, losses(2, how));  // the same bits again
      }
    }
  }
}

TEST(ExpertParallel, AnyNumberOfExpertsLearns) {
  if (device_count() < 1) GTEST_SKIP() << "no GPU";
  for (const Format& f : kFormats)
    for (const int experts : f.experts) {
      const std::vector<double> here = losses(1, with(f.changes, {concat("model.num_local_experts=", experts)}));
      EXPECT_LT(here.back(), here.front()) << f.name << ' ' << experts;
      for (double loss : here) EXPECT_TRUE(std::isfinite(loss)) << f.name << ' ' << experts;
    }
}

}  // namespace
}  // namespace octet::gpu
