// octet plan --fastest finds the settings that trying all of them would find.
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

// Two layers of 7B whose activations, at 16 sequences of 16,384 tokens, outgrow the card.
TEST(Fastest, IsTheFastestOfAllThatFit) {
  const Words run{CONFIGS "/llama2_7b.json",
                  "--target",
                  "h100",
                  "--ranks",
                  "2",
                  "model.num_hidden_layers=2",
                  "training.seq_len=16384",
                  "model.max_position_embeddings=16384",
                  "training.global_batch_size=32"};
  const json found = report(run, {"--fastest"});
  double most = 0;
  int fitting = 0, not_fitting = 0;
  for (const char* stage : {"0", "1", "2", "3"})
    for (const char* micro : {"1", "2", "4", "8", "16"})
      for (const char* blocks : {"0", "1", "2"}) {
        const json plan =
            report(run, {concat("parallel.zero_stage=", stage), concat("training.micro_batch_size=", micro),
                         concat("memory.recompute_blocks=", blocks)});
        const bool fits = plan["total_bytes"].get<double>() < found["card_bytes"].get<double>();
        ++(fits ? fitting : not_fitting);
        if (fits) most = std::max(most, plan["predicted"]["tokens_per_second_per_gpu"].get<double>());
      }
  EXPECT_GT(fitting, 10);
  EXPECT_GT(not_fitting, 10);
  const json& best = found["fastest"][0];
  EXPECT_NEAR(best["tokens_per_second_per_gpu"].get<double>(), most, 1e-6 * most);
  // What it names gives what it says.
  for (const json& setting : found["fastest"]) {
    const json plan = report(run, split(setting["settings"]));
    EXPECT_EQ(plan["total_bytes"].get<double>(), setting["total_bytes"].get<double>()) << setting;
    EXPECT_EQ(plan["predicted"]["tokens_per_second_per_gpu"], setting["tokens_per_second_per_gpu"]) << setting;
    EXPECT_LT(setting["total_bytes"].get<double>(), found["card_bytes"].get<double>());
  }
}

// With experts, the micro-batch is what the router balances: it stays; how experts are spread is free.
TEST(Fastest, ChangesNothingOfWhatAMixtureOfExpertsLearns) {
  const json found = report({CONFIGS "/mixtral_8x7b.json", "--ranks", "16", "training.global_batch_size=64"},
                            {"training.micro_batch_size=2", "--fastest"});
  EXPECT_TRUE(found["given"].is_null());  // it does not fit
  ASSERT_GT(found["fastest"].size(), 4u);
  bool spread = false;
  for (const json& setting : found["fastest"]) {
    const std::string words = setting["settings"];
    EXPECT_TRUE(has(words, "training.micro_batch_size=2 ")) << words;
    spread |= has(words, "parallel.expert_parallel=8 ");
  }
  EXPECT_TRUE(spread);
}

TEST(Fastest, ShowsTheFirstOnesAndWhatWasGiven) {
  expect_done(octet_says({"plan", CONFIGS "/p5/llama2_7b_fp8.json", "--ranks", "16", "--target", "h100", "--fastest"}),
              {"tokens/s are predicted", "parallel.zero_stage=1 training.micro_batch_size=1 memory.recompute_blocks=0",
               "as given\n"});
  expect_done(octet_says({"plan", CONFIGS "/llama2_70b.json", "--target", "h100", "--fastest"}),
              {"none fits", "does not fit"});
}

TEST(Fastest, IsRefusedWhereNothingIsKnown) {
  expect_refused(octet_says({"plan", CONFIGS "/llama_1b.json", "--target", "a100", "--fastest"}), {"a100", "h100"});
  expect_refused(octet_says({"plan", CONFIGS "/tiny_llama.json", "--fastest"}), {"cpu"});
  expect_refused(octet_says({"plan", CONFIGS "/llama_1b.json", "precision.param_dtype=fp32", "--fastest"}), {"fp32"});
}

}  // namespace octet
