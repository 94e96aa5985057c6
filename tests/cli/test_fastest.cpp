// octet plan --fastest finds the settings that trying all of them would find.
#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>

#include "cli/run.h"

namespace octet {
namespace {

using Words = std::vector<std::string>;

Words split(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

json report(Words words, const Words& more) {
  words.insert(words.begin(), "plan");
  words.insert(words.end(), more.begin(), more.end());
  words.push_back("--json");
  const Ran r = octet_says(words);
  expect_done(r);
  return json::parse(r.out);
}

}  // namespace

// Two wide layers on two machines, whose activations, at 8 sequences of 16,384 tokens, outgrow the card.
TEST(Fastest, IsTheFastestOfAllThatFit) {
  const Words run{CONFIGS "/llama2_7b.json",
                  "--target",
                  "h100",
                  "--ranks",
                  "16",
                  "model.num_hidden_layers=2",
                  "model.hidden_size=8192",
                  "model.num_attention_heads=64",
                  "model.num_key_value_heads=64",
                  "model.intermediate_size=22016",
                  "training.seq_len=16384",
                  "model.max_position_embeddings=16384",
                  "training.global_batch_size=128"};
  const json found = report(run, {"--fastest"});
  double most = 0;
  int fitting = 0, not_fitting = 0;
  for (const char* sharding : {"0 ", "1 8", "1 16", "2 8", "2 16", "3 8", "3 16"})
    for (const char* micro : {"1", "2", "4", "8"})
      for (const char* blocks : {"0", "1", "2"}) {
        Words more{concat("parallel.zero_stage=", sharding[0]), concat("training.micro_batch_size=", micro),
                   concat("memory.recompute_blocks=", blocks)};
        if (sharding[2]) more.push_back(concat("parallel.shard_degree=", sharding + 2));
        const json plan = report(run, more);
        const bool fits = plan["total_bytes"] < plan["card_bytes"];
        ++(fits ? fitting : not_fitting);
        if (fits) most = std::max(most, plan["predicted"]["tokens_per_second_per_gpu"].get<double>());
      }
  EXPECT_GT(fitting, 10);
  EXPECT_GT(not_fitting, 10);
  EXPECT_NEAR(found["fastest"][0]["tokens_per_second_per_gpu"].get<double>(), most, 1e-9 * most);
}

// Though it does not plan every micro-batch: 128 here.
TEST(Fastest, WhatItNamesGivesWhatItSays) {
  const Words run{
      CONFIGS "/llama_1b.json",          "--target",        "h100", "--ranks", "16", "model.num_hidden_layers=2",
      "training.global_batch_size=2048", "fp8.enabled=true"};
  const json found = report(run, {"--fastest"});
  EXPECT_GT(found["fastest"].size(), 20u);
  for (const json& setting : found["fastest"]) {
    const json plan = report(run, split(setting["settings"]));
    EXPECT_EQ(plan["total_bytes"], setting["total_bytes"]) << setting;
    EXPECT_LT(plan["total_bytes"], plan["card_bytes"]) << setting;
    EXPECT_EQ(plan["shard_degree"], setting["shard_degree"]) << setting;
    EXPECT_EQ(plan["batch"]["micro_batch_size"], setting["micro_batch_size"]) << setting;
    const double tokens = setting["tokens_per_second_per_gpu"];
    EXPECT_NEAR(plan["predicted"]["tokens_per_second_per_gpu"].get<double>(), tokens, 1e-9 * tokens) << setting;
  }
}

// With experts, the micro-batch is what the router balances: it stays; how experts are spread is free, where groups
// allow.
TEST(Fastest, ChangesNothingOfWhatAMixtureOfExpertsLearns) {
  const json found = report({CONFIGS "/mixtral_8x7b.json", "--ranks", "24", "training.global_batch_size=96"},
                            {"training.micro_batch_size=2", "parallel.shard_degree=12", "--fastest"});
  EXPECT_EQ(found["given"]["fits"], false);
  ASSERT_GT(found["fastest"].size(), 4u);
  std::set<int64_t> spreads;
  for (const json& setting : found["fastest"]) {
    EXPECT_EQ(setting["micro_batch_size"], 2);
    spreads.insert(setting["expert_parallel"].get<int64_t>());
  }
  EXPECT_TRUE(spreads.contains(8) && spreads.contains(4));
}

TEST(Fastest, KeepsTheGroupsThatShareScales) {
  const json found =
      report({CONFIGS "/llama_1b.json", "--ranks", "8", "fp8.enabled=true"},
             {"fp8.reduce_group=shard", "parallel.zero_stage=2", "parallel.shard_degree=4", "--fastest"});
  ASSERT_FALSE(found["fastest"].empty());
  for (const json& setting : found["fastest"])
    EXPECT_TRUE(setting["zero_stage"] == 2 && setting["shard_degree"] == 4) << setting;
}

// FP8 takes multiples of 16 tokens: not one sequence of 1,000.
TEST(Fastest, GoesOnWhereSmallMicroBatchesAreRefused) {
  const json found = report({CONFIGS "/llama_124m.json", "fp8.enabled=true", "training.seq_len=1000", "--fastest"},
                            {"training.micro_batch_size=2", "training.global_batch_size=64"});
  ASSERT_GT(found["fastest"].size(), 2u);
  for (const json& setting : found["fastest"]) EXPECT_EQ(setting["micro_batch_size"].get<int64_t>() % 2, 0) << setting;
}

TEST(Fastest, ShowsTheFirstOnesAndWhatWasGiven) {
  expect_done(octet_says({"plan", CONFIGS "/p5/llama2_7b_fp8.json", "--ranks", "16", "--target", "h100", "--fastest"}),
              {"tokens/s are predicted", "as given\n",
               "parallel.zero_stage=1 parallel.shard_degree=8 training.micro_batch_size=1 memory.recompute_blocks=0"});
  expect_done(octet_says({"plan", CONFIGS "/llama2_70b.json", "--target", "h100", "--fastest"}),
              {"none fits", "DOES NOT FIT"});
}

TEST(Fastest, IsRefusedWhereNothingIsKnown) {
  expect_refused(octet_says({"plan", CONFIGS "/llama_1b.json", "--target", "a100", "--fastest"}), {"a100", "h100"});
  expect_refused(octet_says({"plan", CONFIGS "/tiny_llama.json", "--fastest"}), {"cpu"});
  expect_refused(octet_says({"plan", CONFIGS "/llama_1b.json", "precision.param_dtype=fp32", "--fastest"}), {"fp32"});
}

}  // namespace octet
