// A plan predicts how fast a run is, by rates fitted to runs on H200s.
#include "cli/run.h"

namespace octet {
namespace {

using Words = std::vector<std::string>;

json plan_of(const std::string& config, const Words& more, const std::string& target = "h200") {
  Words words{"plan", CONFIGS "/" + config + ".json", "--target", target, "--json"};
  words.insert(words.end(), more.begin(), more.end());
  const Ran r = octet_says(words);
  expect_done(r);
  return json::parse(r.out);
}

Words joined(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Words kFp8{"fp8.enabled=true"};

}  // namespace

// The middle of what scripts/bench/RESULTS.md gives for each, tokens/s on a GPU. Cards of this kind are up to 4 %
// apart.
TEST(Predict, ReproducesTheMeasuredSpeeds) {
  const Words micro1{"training.micro_batch_size=1", "training.global_batch_size=32"};
  const Words micro3{"training.micro_batch_size=3", "training.global_batch_size=33", "precision.moment_dtype=bf16"};
  const Words layer{"model.num_hidden_layers=1", "memory.recompute_blocks=0", "parallel.zero_stage=0"};
  const Words llama_layer = joined(layer, {"training.micro_batch_size=2", "training.global_batch_size=8"});
  const Words neox_layer = joined(layer, {"training.micro_batch_size=1", "training.global_batch_size=4"});
  const auto sharded = [](const std::string& stage, const std::string& micro) {
    return Words{"--ranks", "2", "training.global_batch_size=32", "parallel.zero_stage=" + stage,
                 "training.micro_batch_size=" + micro};
  };
  const Words experts{"--ranks", "2", "parallel.expert_parallel=2", "parallel.zero_stage=1"};
  struct Row {
    const char* config;
    Words changes;
    double measured;
  };
  const std::vector<Row> rows{
      {"llama_124m", {}, 638'000},
      {"llama_124m", kFp8, 786'000},
      {"llama_1b", {}, 73'100},
      {"llama_1b", kFp8, 98'700},
      {"llama2_7b", micro1, 13'600},
      {"llama2_7b", micro3, 14'150},
      {"llama2_7b", joined(micro3, kFp8), 21'970},
      {"neox_1b4", {}, 66'500},
      {"neox_1b4", kFp8, 92'600},
      {"mixtral_8x7b_slice", {}, 45'800},
      {"mixtral_8x7b_slice", kFp8, 63'600},
      {"llama2_70b", llama_layer, 90'400},
      {"neox_20b", neox_layer, 118'500},
      {"neox_20b", joined(neox_layer, kFp8), 143'800},
      {"llama2_7b", sharded("1", "2"), 13'746},
      {"llama2_7b", sharded("2", "2"), 12'896},
      {"llama2_7b", sharded("3", "2"), 12'276},
      {"llama2_7b", joined(sharded("1", "4"), kFp8), 21'729},
      {"llama2_7b", joined(sharded("2", "4"), kFp8), 21'005},
      {"llama2_7b", joined(sharded("3", "4"), kFp8), 20'562},
      {"mixtral_8x7b_slice", experts, 43'330},
      {"mixtral_8x7b_slice", joined(experts, kFp8), 57'680},
  };
  for (const Row& row : rows) {
    const json plan = plan_of(row.config, row.changes);
    const double predicted = plan["predicted"]["tokens_per_second_per_gpu"];
    EXPECT_NEAR(predicted / row.measured, 1, 0.06) << row.config << " " << json(row.changes);
  }
}

TEST(Predict, TheStepIsTheSumOfItsClassesAndTheRunThatOfItsSteps) {
  const json plan = plan_of("llama2_7b", {"--ranks", "8", "training.tokens=0", "training.steps=1000"});
  double sum = 0;
  for (const auto& [name, work] : plan["work"].items()) {
    EXPECT_TRUE(work.contains("ms")) << name;
    sum += work["ms"].get<double>();
  }
  const json& p = plan["predicted"];
  EXPECT_NEAR(p["step_ms"].get<double>(), sum, 1e-6 * sum);
  EXPECT_NEAR(p["seconds"].get<double>(), sum, 1e-6 * sum);  // 1000 steps, in seconds
  const double tokens = plan["batch"]["tokens"].get<double>() / 8;
  EXPECT_NEAR(p["tokens_per_second_per_gpu"].get<double>(), tokens / (1e-3 * sum), 1e-3);
  EXPECT_EQ(p["network_assumed"], false);
  EXPECT_EQ(p["card_measured"], true);
}

// Sharding groups of one machine send their gradients over NVLink, replicas of 8 over one network link each; groups of
// all 16 have the links of all 8 cards of a machine.
TEST(Predict, WhatCrossesMachinesTakesTheNetwork) {
  const Words many{"--ranks", "16", "training.global_batch_size=512"};
  const auto plan = [&](const Words& more) { return plan_of("llama2_7b", joined(many, more)); };
  const auto rate = [](const json& plan, const char* name) {  // GB/s
    const json& w = plan["work"][name];
    return w["bytes"].get<double>() / 1e6 / (w["ms"].get<double>() - 2e-3 * w["calls"].get<double>());
  };
  const json hybrid = plan({"parallel.shard_degree=8"});
  EXPECT_EQ(hybrid["predicted"]["network_assumed"], true);
  EXPECT_NEAR(rate(hybrid, "reduce-scatter"), 380, 1e-3);
  EXPECT_NEAR(rate(hybrid, "all-reduce"), 50, 1e-3);
  const json wide = plan({"parallel.shard_degree=16", "--local-ranks", "4"});
  EXPECT_NEAR(rate(wide, "reduce-scatter"), 4 * 50, 1e-3);
  const json replicas = plan({"parallel.zero_stage=0", "--local-ranks", "4"});
  EXPECT_NEAR(rate(replicas, "all-reduce"), 4 * 50, 1e-3);
  const json straddling =
      plan_of("llama2_7b", {"--ranks", "24", "training.global_batch_size=24", "parallel.shard_degree=3"});
  EXPECT_NEAR(rate(straddling, "reduce-scatter"), 50, 1e-3);
  const json one = plan({"parallel.shard_degree=16", "--local-ranks", "16"});
  EXPECT_EQ(one["predicted"]["network_assumed"], false);
  EXPECT_NEAR(rate(one, "reduce-scatter"), 380, 1e-3);
}

// The ranks that hold the same experts are as far apart as experts are spread: of those, fewer are on a machine.
TEST(Predict, ExpertsHaveFewerLinksBetweenMachines) {
  const auto rate = [](const char* spread, const char* degree, const char* name) {  // GB/s
    const json plan = plan_of("mixtral_8x7b_slice", {"--ranks", "32", "training.global_batch_size=64", spread, degree});
    const json& w = plan["work"][name];
    return w["bytes"].get<double>() / 1e6 / (w["ms"].get<double>() - 2e-3 * w["calls"].get<double>());
  };
  EXPECT_NEAR(rate("parallel.expert_parallel=1", "parallel.shard_degree=16", "reduce-scatter"), 380, 1e-3);
  EXPECT_NEAR(rate("parallel.expert_parallel=2", "parallel.shard_degree=16", "reduce-scatter"), 4 * 50, 1e-3);
  EXPECT_NEAR(rate("parallel.expert_parallel=8", "parallel.shard_degree=16", "reduce-scatter"), 50, 1e-3);
  EXPECT_NEAR(rate("parallel.expert_parallel=8", "parallel.zero_stage=0", "all-reduce"), 50, 1e-3);
  EXPECT_NEAR(rate("parallel.expert_parallel=8", "parallel.shard_degree=16", "all-to-all"), 100, 1e-3);
}

TEST(Predict, TakesTheUsualMachinesWhereNoneAreGiven) {
  const auto local = [](const char* ranks) {
    return plan_of("llama_1b", {"--ranks", ranks, "training.global_batch_size=4800"})["local_ranks"].get<int64_t>();
  };
  EXPECT_EQ(local("8"), 8);
  EXPECT_EQ(local("16"), 8);
  EXPECT_EQ(local("12"), 6);
  EXPECT_EQ(local("100"), 5);
  expect_done(octet_says({"plan", CONFIGS "/llama_1b.json", "--ranks", "12", "training.global_batch_size=48"}),
              {"12 ranks, 6 to a machine"});
  expect_refused(octet_says({"plan", CONFIGS "/mixtral_8x7b.json", "--ranks", "8", "--local-ranks", "4",
                             "parallel.expert_parallel=8"}),
                 {"parallel.expert_parallel (8) does not divide the 4 ranks of a machine"});
}

TEST(Predict, SaysOnWhatItRests) {
  const auto says = [](const std::string& target, const Words& more = {}) {
    return octet_says(joined({"plan", CONFIGS "/llama_1b.json", "--target", target}, more));
  };
  expect_done(says("h200"), {"tokens/s on each rank\n", "fitted to runs of one and two H200s\n"});
  expect_done(says("h100"), {"H200s; memory's by the bandwidth of h100\n"});
  expect_done(says("h100", {"--ranks", "16", "training.global_batch_size=64"}),
              {"bandwidth of h100; between machines 50 GB/s a card are assumed\n"});
  expect_done(says("h200", {"data.intra_document_mask=true"}), {"as if tokens attended to other documents too\n"});
  const json h100 = plan_of("llama_1b", {}, "h100"), h200 = plan_of("llama_1b", {});
  EXPECT_EQ(h100["predicted"]["card_measured"], false);
  EXPECT_GT(h100["work"]["norm"]["ms"].get<double>(), 1.4 * h200["work"]["norm"]["ms"].get<double>());
}

// Neither other cards nor products in fp32 have rates.
TEST(Predict, KeepsSilentWhereNothingWasMeasured) {
  EXPECT_FALSE(plan_of("llama_1b", {}, "a100").contains("predicted"));
  EXPECT_FALSE(plan_of("tiny_llama", {}, "cpu").contains("predicted"));
  const json fp32 = plan_of("llama_1b", {"precision.param_dtype=fp32"});
  EXPECT_FALSE(fp32.contains("predicted"));
  EXPECT_FALSE(fp32["work"]["norm"].contains("ms"));
}

}  // namespace octet
