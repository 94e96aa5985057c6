// Ranks of one machine share its processors evenly, whatever a launcher bound them to; other machines do not count; and
// octet computes with that many threads.
#include "cli/tiny_run.h"
#include "host/processors.h"
#include "ranks.h"

namespace octet {
namespace {

Processors on(uint64_t machine, int first, int count) {
  Processors p{.machine = machine};
  for (int i = first; i < first + count; ++i) CPU_SET(size_t(i), &p.allowed);
  return p;
}
std::vector<int> shares(const std::vector<Processors>& all) {
  std::vector<int> each;
  for (const Processors& mine : all) each.push_back(fair_share(mine, all));
  return each;
}
using Shares = std::vector<int>;

TEST(Processors, AreSharedByThoseWhoMayUseThem) {
  EXPECT_EQ(shares({on(1, 0, 64)}), Shares{0});  // alone: as OpenMP has it
  EXPECT_EQ(shares({on(1, 0, 64), on(1, 0, 64)}), Shares({32, 32}));
  EXPECT_EQ(shares({on(1, 0, 64), on(1, 0, 64), on(1, 0, 64)}), Shares({21, 21, 21}));
  EXPECT_EQ(shares({on(1, 0, 3), on(1, 0, 3), on(1, 0, 3)}), Shares({1, 1, 1}));  // exactly, though thirds are not
  EXPECT_EQ(shares({on(1, 0, 2), on(1, 0, 2), on(1, 0, 2)}), Shares({1, 1, 1}));  // one at least
  EXPECT_EQ(shares({on(1, 0, 1), on(1, 1, 1)}), Shares({0, 0}));                  // bound apart
  EXPECT_EQ(shares({on(1, 0, 32), on(1, 0, 32), on(1, 32, 32), on(1, 32, 32)}), Shares({16, 16, 16, 16}));
  EXPECT_EQ(shares({on(1, 0, 8), on(1, 4, 4)}), Shares({6, 2}));
  EXPECT_EQ(shares({on(1, 0, 8), on(2, 0, 8), on(1, 0, 8)}), Shares({4, 0, 4}));  // of two machines
  EXPECT_EQ(shares({on(0, 0, 8), on(0, 0, 8)}), Shares({0, 0}));                  // not known which
}

TEST(Processors, OfThreadsAreThoseOfTheProcess) {
  const Processors mine = my_processors();
  ASSERT_NE(mine.machine, 0u);
  const int all = CPU_COUNT(&mine.allowed);
  run_ranks(1, [&](Host& host) { EXPECT_EQ(fair_share(host), 0); });
  for (const int ranks : {2, 3})
    run_ranks(ranks, [&](Host& host) { EXPECT_EQ(fair_share(host), std::max(1, all / ranks)); });
}

TEST(Processors, AreWhatOctetComputesWith) {
  const TinyRun tiny;
  const auto says = [&](std::vector<std::string> words, const std::string& ranks) {
    words.insert(words.begin(), "env");
    for (const std::string& word : tiny.words({"training.steps=3", "checkpoint.dir=", "--ranks", ranks}))
      words.push_back(word);
    return run(words);
  };
  const auto of = [](int threads) { return concat("CPU, ", threads, threads == 1 ? " thread, " : " threads, "); };
  const Processors mine = my_processors();
  const int all = CPU_COUNT(&mine.allowed);
  expect_done(says({"-u", "OMP_NUM_THREADS"}, "1"), {of(all) + "1 rank"});
  expect_done(says({"-u", "OMP_NUM_THREADS"}, "2"), {of(std::max(1, all / 2)) + "2 ranks"});
  expect_done(says({"OMP_NUM_THREADS=3"}, "2"), {of(3) + "2 ranks"});
}

}  // namespace
}  // namespace octet
