// What counts as the same last words, and who speaks before the ranks can talk.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "host/last_words.h"
#include "host/launch.h"
#include "host_wrapper.h"

namespace octet {
namespace {

TEST(LastWords, AreTheSameButForFiguresWithUnits) {
  EXPECT_EQ(word_of("needs 90.1 GiB; GPU has 79.2 GiB free"), word_of("needs 90.1 GiB; GPU has 78.95 GiB free"));
  EXPECT_EQ(word_of("cannot read 'a'"), word_of("cannot read 'a'"));
  EXPECT_NE(word_of("cannot read 'shard-3'"), word_of("cannot read 'shard-4'"));
  EXPECT_NE(word_of("training.steps is 3 here"), word_of("training.steps is 4 here"));
}

struct LaunchedAs {
  explicit LaunchedAs(const char* rank) { setenv("SLURM_PROCID", rank, 1); }
  ~LaunchedAs() { unsetenv("SLURM_PROCID"); }
};

double seconds_to_say(const std::string& expected) {
  const auto start = std::chrono::steady_clock::now();
  testing::internal::CaptureStderr();
  say_alone("no config");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), expected);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The first one that ends takes the others with it, so that rank 0 comes first.
TEST(LastWords, BeforeTheRanksCanTalkRank0Speaks) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) unsetenv(name);
  EXPECT_EQ(launched_rank(), 0);
  const double first = seconds_to_say("octet: no config\n");
  const LaunchedAs third("3");
  EXPECT_EQ(launched_rank(), 3);
  EXPECT_GT(seconds_to_say("rank 3 on " + machine_name() + ": octet: no config\n"), first + 1);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The first rank of a machine: rank 0 does not fail alike, so that it speaks for the others there, once it knows.
struct Speaker : HostWrapper {
  using HostWrapper::HostWrapper;
  int rank() const override { return 2; }
  int size() const override { return 4; }
  bool shares_memory() const override { return false; }
  bool hears_failure(uint64_t, double seconds) noexcept override {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    spoken = now();
    return false;
  }
  void abort(int) noexcept override { aborted = now(); }
  double spoken = 0, aborted = 0;
};
struct SpokenFor : Speaker {
  using Speaker::Speaker;
  int rank() const override { return 3; }
  bool hears_failure(uint64_t, double) noexcept override { return true; }
};

// A rank that ends ends all, and mpirun may lose what was written just before.
TEST(LastWords, AreSpokenBeforeARankThatTheyStandForEndsTheJob) {
  LoneHost lone(4);
  Speaker speaker(lone);
  SpokenFor other(lone);
  testing::internal::CaptureStderr();
  std::thread second([&] { end_job(other, "no file", 2); });
  end_job(speaker, "no file", 2);
  second.join();
  ::alarm(0);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "rank 2 on " + machine_name() + ": octet: no file\n");
  EXPECT_GT(other.aborted, speaker.spoken + 0.5);
  EXPECT_GT(speaker.aborted, speaker.spoken + 0.5);
}

}  // namespace
}  // namespace octet
