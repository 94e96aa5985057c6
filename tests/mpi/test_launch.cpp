// octet under mpirun as a user starts it: machines (here two of two ranks, by OCTET_LOCAL_SIZE) shard within and
// replicate across unless told otherwise, and the losses are those of one rank.
#include "cli/tiny_run.h"
#include "mpi/mpirun.h"

namespace octet {
namespace {

std::vector<std::string> words(const TinyRun& tiny, const std::string& machine, const std::vector<std::string>& more) {
  std::vector<std::string> all{"env", "OCTET_LOCAL_SIZE=" + machine, "mpirun", "-np", "4", "--oversubscribe"};
  std::vector<std::string> changes{"training.global_batch_size=4", "training.micro_batch_size=1", "schedule.lr=3e-3",
                                   "parallel.check_every=1"};
  changes.insert(changes.end(), more.begin(), more.end());
  for (const std::string& word : tiny.words(changes)) all.push_back(word);
  return all;
}

TEST_F(Mpi, MachinesShardWithinUnlessToldOtherwise) {
  const TinyRun tiny;
  expect_done(tiny.train(
      {"training.micro_batch_size=1", "schedule.lr=3e-3", "checkpoint.dir=", "log.file=" + tiny.path("one.jsonl")}));
  const std::vector<double> one = tiny.losses("one.jsonl");
  ASSERT_EQ(one.size(), 10u);
  for (const auto& [machine, changes, said] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"2", "parallel.zero_stage=1", ", stage 1 among 2 ranks"},
           {"2", "parallel.zero_stage=3", ", stage 3 among 2 ranks"},
           {"1", "parallel.zero_stage=2", ", stage 2 among 1 rank"},
           {"2", "parallel.shard_degree=4", ", stage 1 among 4 ranks"},
           {"4", "parallel.zero_stage=2", ", stage 2 among 4 ranks"},
           {"3", "parallel.zero_stage=2", ", stage 2 among 4 ranks"}}) {  // machines of unequal size
    const std::string log = "log.file=" + tiny.path("many.jsonl");
    std::filesystem::remove(tiny.path("many.jsonl"));
    expect_done(run(words(tiny, machine, {changes, "checkpoint.dir=", log})), {"4 ranks", said, "step 10/10"});
    const std::vector<double> many = tiny.losses("many.jsonl");
    ASSERT_EQ(many.size(), 10u);
    for (size_t i = 0; i < 10; ++i) EXPECT_NEAR(many[i], one[i], 1e-6 * one[i]) << changes << " step " << i + 1;
  }
}

// Saved by two machines that shard within, resumed by one rank and by one machine of four.
TEST_F(Mpi, ARunGoesOnOnOtherMachines) {
  const TinyRun whole, parts;
  const std::vector<std::string> usual{"training.micro_batch_size=1", "schedule.lr=3e-3"};
  expect_done(whole.train(usual));
  const std::vector<double> want = whole.losses();
  expect_done(run(words(parts, "2", {"training.stop_after=3", "parallel.zero_stage=3"})), {"step 3/10"});
  expect_done(parts.train({"training.micro_batch_size=2", "schedule.lr=3e-3", "training.stop_after=3"}),
              {"resumed from", "step 6/10"});
  expect_done(run(words(parts, "4", {"parallel.zero_stage=2"})), {"resumed from", "step 10/10"});
  const std::vector<double> got = parts.losses();
  ASSERT_EQ(got.size(), 10u);
  for (size_t i = 0; i < 10; ++i) EXPECT_NEAR(got[i], want[i], 1e-6 * want[i]) << "step " << i + 1;
}

}  // namespace
}  // namespace octet
