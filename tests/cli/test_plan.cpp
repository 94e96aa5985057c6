// A plan shows what a run needs, without a GPU and without data.
#include "cli/run.h"

namespace octet {

TEST(Plan, Llama2SevenBillion) {
  const Ran r = octet_says({"train", CONFIGS "/llama2_7b.json", "--dry-run"});
  expect_done(r, {"6,738,415,616", "42,863,689,728 causal", "46,084,915,200 full", "weights", "optimizer", "total",
                  "steps              152,588", "attention backward"});
  EXPECT_EQ(octet_says({"plan", CONFIGS "/llama2_7b.json"}).out, r.out);
}

TEST(Plan, FlopsATokenDoNotCountRecomputation) {
  const auto flops = [](const std::string& blocks) {
    const Ran r = octet_says({"plan", CONFIGS "/llama2_7b.json", "memory.recompute_blocks=" + blocks, "--json"});
    expect_done(r);
    return json::parse(r.out)["flops_per_token"]["causal"].get<int64_t>();
  };
  EXPECT_EQ(flops("32"), 42863689728);
  EXPECT_EQ(flops("0"), 42863689728);
}

TEST(Plan, EveryConfigCanBePlanned) {
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(CONFIGS)) {
    if (entry.is_directory()) continue;
    const Ran r = octet_says({"plan", entry.path(), "--ranks", "8", "training.global_batch_size=384", "--json"});
    expect_done(r);
    const json plan = json::parse(r.out);
    EXPECT_GT(plan["parameters"], 0) << entry.path();
    EXPECT_GT(plan["total_bytes"], 0) << entry.path();
    EXPECT_EQ(plan["ranks"], 8) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 6);
}

TEST(Plan, MemoryIsTheSumOfItsCategoriesAndFallsWithRanks) {
  const auto plan = [](const std::string& ranks) {
    return json::parse(
        octet_says({"plan", CONFIGS "/llama_1b.json", "--ranks", ranks, "parallel.zero_stage=3", "--json"}).out);
  };
  const json one = plan("1"), four = plan("4");
  int64_t sum = 0;
  for (const auto& [name, bytes] : one["memory_bytes"].items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, one["total_bytes"].get<int64_t>());
  EXPECT_LT(four["memory_bytes"]["optimizer"].get<double>(), 0.3 * one["memory_bytes"]["optimizer"].get<double>());
}

TEST(Plan, SaysNothingOfADecayOrOfShardsWhereThereAreNone) {
  const auto says = [](const std::string& option) {
    return octet_says({"plan", CONFIGS "/tiny_llama.json", "--ranks", "2", option});
  };
  expect_done(says("schedule.kind=cosine"), {"to 0.003, then down to 0.0003", "stage 1 among 2 ranks, 1 such group"});
  expect_done(says("schedule.kind=constant"), {"to 0.003, which stays"});
  expect_done(says("parallel.zero_stage=0"), {"stage 0: nothing, every rank is a replica"});
}

TEST(Plan, SaysWhatDoesNotFitAndWhatToDo) {
  expect_done(octet_says({"plan", CONFIGS "/llama2_70b.json", "--target", "a100"}),
              {"DOES NOT FIT", "memory.recompute_blocks", "(precision.moment_dtype).\n"});
  expect_done(octet_says({"plan", CONFIGS "/llama2_70b.json", "--target", "h100"}),
              {"DOES NOT FIT", "octet plan --fastest searches for settings that fit"});
}

// CUDA, its libraries and NCCL take theirs: a run for which they leave no room is refused when it starts.
TEST(Plan, ACardHasLessForARunThanItsMemory) {
  const auto plan = [](const std::string& ranks) {
    return octet_says({"plan", CONFIGS "/llama2_7b.json", "--ranks", ranks, "training.global_batch_size=64",
                       "parallel.zero_stage=0", "--json"});
  };
  constexpr double kH200 = 139.7 * 1024 * 1024 * 1024;  // as its cudaMemGetInfo says
  EXPECT_NEAR(json::parse(plan("1").out)["card_bytes"].get<double>(), kH200 - 0.7e9, 1);
  EXPECT_NEAR(json::parse(plan("2").out)["card_bytes"].get<double>(), kH200 - 3e9, 1);
}

TEST(Plan, RefusesWhatNoMachineHolds) {
  for (const char* command : {"plan", "bench"}) {
    expect_refused(octet_says({command, CONFIGS "/tiny_llama.json", "checkpoint.dir=", "model.hidden_size=1048576",
                               "model.num_attention_heads=65536", "model.num_hidden_layers=10000", "model.head_dim=0",
                               "model.num_key_value_heads=0"}),
                   {"PiB", "weights", "model"});
    expect_refused(octet_says({command, CONFIGS "/tiny_llama.json", "checkpoint.dir=",
                               "training.micro_batch_size=1000000", "training.global_batch_size=1000000"}),
                   {"training.micro_batch_size", "256000000 tokens", "lower"});
  }
}

TEST(Plan, RefusesMoreRanksThanItCounts) {  // 2^32 + 1 of them were planned as one
  for (const char* ranks : {"4294967297", "9223372036854775807"})
    expect_refused(octet_says({"plan", CONFIGS "/tiny_llama.json", "--ranks", ranks}), {"--ranks", "1000000"});
}

TEST(Plan, SaysWhatIsNotUsed) {
  expect_done(octet_says({"plan", CONFIGS "/tiny_llama.json", "fp8.enabled=true", "fp8.exclude=[\"*.donw_proj\"]",
                          "schedule.decay_steps=3"}),
              {"warnings", "\"*.donw_proj\" names no layer", "schedule.decay_steps (3) is not used"});
  const Ran usual = octet_says({"plan", CONFIGS "/tiny_llama.json", "fp8.enabled=true"});
  EXPECT_EQ(usual.out.find("warnings"), std::string::npos);
}

TEST(Plan, RefusesWhatTheCardCannotDo) {
  expect_refused(octet_says({"plan", CONFIGS "/llama_1b.json", "--target", "a100", "fp8.enabled=true"}),
                 {"compute capability 8.0", "fp8.enabled=false"});
  expect_refused(octet_says({"plan", CONFIGS "/llama_1b.json", "--target", "h300"}), {"h300", "h200"});
  expect_refused(octet_says({"plan", CONFIGS "/llama_1b.json", "--ranks", "7"}), {"global_batch_size", "7 ranks"});
}

}  // namespace octet
