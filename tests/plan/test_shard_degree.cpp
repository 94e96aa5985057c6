// parallel.shard_degree, where a config leaves it open: on several machines the fewest whole ones whose memory fits by
// plan; `octet plan` says so.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "cli/ranks.h"
#include "cli/run.h"
#include "host_wrapper.h"
#include "ranks.h"

namespace octet {
namespace {

RunConfig config_of(const std::vector<std::string>& changes = {}) {
  std::vector<std::string> all{"parallel.zero_stage=3", "training.global_batch_size=32", "training.micro_batch_size=1"};
  all.insert(all.end(), changes.begin(), changes.end());
  return load_config(CONFIGS "/llama_124m.json", all);
}
Planner planner(int ranks) {
  return planner_for({.cuda = true, .compute_capability = 90, .multiprocessors = 132}, ranks);
}
double planned_bytes(int64_t degree) {
  return double(planner(16)(config_of({"parallel.shard_degree=" + std::to_string(degree)})).memory.total());
}

TEST(ShardDegree, IsTheFewestWholeMachinesThatHaveTheMemory) {
  const auto chosen = [](double bytes) { return chosen_shard_degree(config_of(), {16, 2, bytes}, planner(16)); };
  double before = 1e30;
  for (const int64_t degree : {2, 4, 8}) {
    const double bytes = planned_bytes(degree);
    EXPECT_LT(bytes, before) << degree;
    EXPECT_EQ(chosen(bytes), degree);
    EXPECT_EQ(chosen(bytes - 1), 2 * degree);
    before = bytes;
  }
  EXPECT_EQ(chosen(1), 16);  // nothing fits: as much sharding as there is
  EXPECT_EQ(chosen(0), 2);   // not known
}

TEST(ShardDegree, MachinesAreNeverCut) {
  const double none = 1;  // so that the choice goes on to the end
  EXPECT_EQ(chosen_shard_degree(config_of({"training.global_batch_size=24"}), {24, 4, planned_bytes(16)}, planner(24)),
            24);
  EXPECT_EQ(chosen_shard_degree(config_of(), {16, 16, none}, planner(16)), 0);  // one machine: all ranks, as ever
  EXPECT_EQ(chosen_shard_degree(config_of(), {16, 6, none}, planner(16)), 0);   // machines of different sizes
}

TEST(ShardDegree, WhatIsSaidIsKept) {
  EXPECT_EQ(chosen_shard_degree(config_of({"parallel.shard_degree=4"}), {16, 2, 1}, planner(16)), 0);
  EXPECT_EQ(chosen_shard_degree(config_of({"parallel.zero_stage=0"}), {16, 2, 1}, planner(16)), 0);
}

// Threads that say they are ranks of these machines, by their ranks on them.
class Machine final : public HostWrapper {
 public:
  Machine(Host& host, int local_rank, int local_size)
      : HostWrapper(host), local_rank_(local_rank), local_size_(local_size) {}
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }

 private:
  int local_rank_, local_size_;
};

TEST(ShardDegree, AllRanksChooseTheSameWhateverTheirMachines) {
  const auto chosen = [](const std::vector<std::pair<int, int>>& places) {  // local rank and size of each rank
    std::vector<int64_t> degrees(places.size());
    run_ranks(int(places.size()), [&](Host& host) {
      const auto [local_rank, local_size] = places[size_t(host.rank())];
      Machine machine(host, local_rank, local_size);
      const RunConfig c = with_shard_degree(config_of(), machine, cpu::engine(), planner(machine.size()));
      degrees[size_t(host.rank())] = c.parallel.shard_degree;
    });
    for (const int64_t d : degrees) EXPECT_EQ(d, degrees[0]);
    return degrees[0];
  };
  EXPECT_EQ(chosen({{0, 2}, {1, 2}, {0, 2}, {1, 2}}), 2);
  EXPECT_EQ(chosen({{0, 1}, {0, 1}, {0, 1}, {0, 1}}), 1);
  EXPECT_EQ(chosen({{0, 4}, {1, 4}, {2, 4}, {3, 4}}), 0);
  EXPECT_EQ(chosen({{0, 3}, {1, 3}, {2, 3}, {0, 1}}), 0);  // machines of different sizes
  EXPECT_EQ(chosen({{0, 2}, {0, 2}, {1, 2}, {1, 2}}), 0);  // dealt round: neighbours are on different machines
}

// A rank whose card's driver hangs never answers; the others are not to hold their nodes for it.
TEST(ShardDegreeDeathTest, ARankThatNeverAnswersIsNotWaitedForWithoutEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  struct Waits : HostWrapper {
    using HostWrapper::HostWrapper;
    bool shares_memory() const override { return false; }
    void all_gather(void*, const void*, size_t) override { std::this_thread::sleep_for(std::chrono::minutes(1)); }
  };
  const auto ask = [] {
    LoneHost alone(2);
    Waits host(alone);
    with_shard_degree(config_of({"parallel.watchdog_seconds=1e-2"}), host, cpu::engine(), planner(2));
  };
  EXPECT_EXIT(ask(), testing::ExitedWithCode(3), "octet: rank 0 on .* has waited 0.4 s at the start for its own card");
}

TEST(ShardDegree, OctetPlanSaysWhatItChose) {
  const auto plan = [](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"plan", CONFIGS "/llama2_70b.json", "parallel.zero_stage=3", "memory.recompute_blocks=-1",
                 "training.micro_batch_size=1", "training.global_batch_size=1024"});
    return octet_says(more);
  };
  // 16 bytes for each of 69e9 parameters, and what is whole in turn: two machines of eight H200s, four of H100s.
  expect_done(plan({"--ranks", "64", "--target", "h200"}),
              {"stage 3 among 16 ranks (chosen: the fewest whole machines that have the memory), 4 such groups"});
  expect_done(plan({"--ranks", "64", "--target", "h100"}), {"stage 3 among 32 ranks (chosen"});
  expect_done(plan({"--ranks", "64", "--local-ranks", "32"}), {"stage 3 among 32 ranks (chosen", "2 such groups"});
  expect_done(plan({"--ranks", "64", "parallel.shard_degree=64"}), {"stage 3 among 64 ranks, 1 such group"});
  const json report = json::parse(plan({"--ranks", "64", "--target", "h200", "--json"}).out);
  EXPECT_EQ(report["shard_degree"], 16);
  EXPECT_EQ(report["config"]["parallel"]["shard_degree"], 16);
  expect_refused(plan({"--ranks", "64", "--local-ranks", "7"}), {"--local-ranks 7", "64 ranks"});
}

}  // namespace
}  // namespace octet
