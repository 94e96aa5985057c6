// Hosts: what ranks say arrives; groups form by colour; machines are counted; a rank that fails ends the others.
// Signals: none is lost between ranks, and none makes a failure of a run that is over.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "host/launch.h"
#include "host/signals.h"
#include "ranks.h"

namespace octet {
namespace {

class Variable {  // of the environment, for a scope
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(Threads, GatherExchangeBroadcast) {
  for (int ranks : {1, 2, 3, 5})
    run_ranks(ranks, [&](Host& host) {
      ASSERT_EQ(host.size(), ranks);
      ASSERT_TRUE(host.shares_memory());
      const auto n = size_t(ranks);
      for (int round = 0; round < 20; ++round) {
        std::vector<int> all(n, -1), sent(n), got(n, -1);
        const int mine = 100 * round + host.rank();
        host.all_gather(all.data(), &mine, sizeof mine);
        for (int r = 0; r < ranks; ++r) ASSERT_EQ(all[size_t(r)], 100 * round + r);
        for (int r = 0; r < ranks; ++r) sent[size_t(r)] = 10 * host.rank() + r;
        host.all_to_all(got.data(), sent.data(), sizeof(int));
        for (int r = 0; r < ranks; ++r) ASSERT_EQ(got[size_t(r)], 10 * r + host.rank());
        int word = mine;
        host.broadcast(&word, sizeof word, round % ranks);
        ASSERT_EQ(word, 100 * round + round % ranks);
      }
    });
}

TEST(Threads, SplitByColourInRankOrder) {
  run_ranks(6, [](Host& host) {
    const int colour = host.rank() % 3;
    const auto group = host.split(colour, 2);
    ASSERT_EQ(group->size(), 2);
    ASSERT_EQ(group->rank(), host.rank() / 3);
    ASSERT_EQ(group->local_rank(), host.rank());  // of the machine, not of the group
    int all[2];
    const int mine = host.rank();
    group->all_gather(all, &mine, sizeof mine);
    ASSERT_EQ(all[0], colour);
    ASSERT_EQ(all[1], colour + 3);
    const auto alone = group->split(group->rank(), 1);  // and groups of groups
    ASSERT_EQ(alone->size(), 1);
    alone->barrier();
  });
}

TEST(Threads, SplitIntoWrongSizeIsAnError) {
  EXPECT_THROW(run_threads(3, [](Host& host) { host.split(host.rank() % 2, 2); }), Error);
}

TEST(Threads, FirstErrorIsTheOneReported) {
  for (int failing : {0, 2}) {
    int finished = 0;
    try {
      run_threads(3, [&](Host& host) {
        host.barrier();
        if (host.rank() == failing) bad_input("disk of rank ", failing);
        host.barrier();
        ++finished;
      });
      FAIL() << "nothing was thrown";
    } catch (const InputError& e) { EXPECT_EQ(e.what(), concat("disk of rank ", failing)); }
    EXPECT_EQ(finished, 0);
  }
}

TEST(Threads, FailureInAGroupEndsRanksOutsideIt) {
  const auto body = [](Host& host) {
    const auto pair = host.split(host.rank() / 2, 2);
    if (host.rank() == 0) bad_input("lost");
    if (host.rank() == 1) pair->barrier();
    host.barrier();
  };
  EXPECT_THROW(run_threads(4, body), InputError);
}

TEST(Threads, WhoWaitsForADeviceIsTold) {
  std::atomic<int> told = 0;
  const auto body = [&](Host& host) {
    host.when_lost([&] { told += 100; });  // dropped at once
    std::atomic<bool> lost = false;
    const auto watch = host.when_lost([&] { ++told, lost = true; });
    host.barrier();
    if (host.rank() == 1) bad_input("lost");
    while (!lost) std::this_thread::yield();  // as on a device that waits for rank 1
  };
  EXPECT_THROW(run_threads(3, body), InputError);
  EXPECT_GE(told, 2);
  EXPECT_LE(told, 3);  // rank 1 may have dropped its own
}

// Ranks 0 and 1 are in a group; rank 3 of another fails while 0 reads what 1 owns, and 1 waits for it.
TEST(Threads, WhatIsStillReadOutlivesAFailureElsewhere) {
  std::atomic<bool> begun = false, reading = false, gone_too_early = false;
  struct Memory {
    std::atomic<bool>&reading, &gone_too_early;
    Memory(std::atomic<bool>& r, std::atomic<bool>& g) : reading(r), gone_too_early(g) {}
    ~Memory() { gone_too_early = gone_too_early || reading; }
  };
  const auto body = [&](Host& host) {
    const auto group = host.split(host.rank() / 2, 2);
    if (host.rank() == 2) host.barrier();
    if (host.rank() == 3) {
      while (!begun) std::this_thread::yield();
      bad_input("lost");
    }
    const auto memory = host.rank() == 1 ? std::make_unique<Memory>(reading, gone_too_early) : nullptr;
    group->barrier();
    if (host.rank() == 0) {
      reading = begun = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      reading = false;
    }
    group->barrier();
  };
  EXPECT_THROW(run_threads(4, body), InputError);
  EXPECT_FALSE(gone_too_early);
}

TEST(Threads, AbortEndsTheOthers) {
  const auto body = [](Host& host) {
    if (host.rank() == 1) host.abort(3);
    else host.barrier();
  };
  EXPECT_THROW(run_threads(3, body), SystemError);
}

// Those that had been started waited for the rest without end.
TEST(Threads, AThreadThatCannotBeStartedEndsTheRun) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve more addresses than there are";
#endif
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    const rlimit some{rlim_t{2} << 30, rlim_t{2} << 30};
    ::setrlimit(RLIMIT_AS, &some);
    try {
      run_threads(5000, [](Host& host) { host.barrier(); });
    } catch (const std::system_error& e) {
      ::_exit(e.code() == std::errc::resource_unavailable_try_again ? 7 : 8);
    } catch (...) { ::_exit(9); }
    ::_exit(10);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST(Threads, LocalSizeFromTheEnvironment) {
  run_ranks(4, [](Host& host) {
    ASSERT_EQ(host.local_size(), 4);
    ASSERT_EQ(host.local_rank(), host.rank());
  });
  const Variable size("OCTET_LOCAL_SIZE", "2");
  run_ranks(4, [](Host& host) {
    ASSERT_EQ(host.local_size(), 2);
    ASSERT_EQ(host.local_rank(), host.rank() % 2);
    ASSERT_EQ(host.split(host.rank() / 2, 2)->local_rank(), host.rank() % 2);
  });
}

TEST(Launch, BadNumberIsAnInputError) {
  for (const char* bad : {"two", "0", "-1", "3x"}) {
    const Variable size("OCTET_LOCAL_SIZE", bad);
    EXPECT_THROW(forced_local_size(), InputError) << bad;
  }
  EXPECT_EQ(forced_local_size(), 0);
}

TEST(Launch, AloneThereIsNoMpi) {
  if (launch().ranks > 1 || launch().through_mpi) GTEST_SKIP() << "started by a launcher";
  EXPECT_EQ(mpi_host(nullptr, nullptr), nullptr);
  const Variable tasks("SLURM_STEP_NUM_TASKS", "4");
  EXPECT_EQ(launch().ranks, 4);
  EXPECT_FALSE(launch().through_mpi);
  EXPECT_THROW(mpi_host(nullptr, nullptr), InputError);  // four runs that know nothing of each other
}

TEST(Lone, StandsForAll) {
  LoneHost host(3);
  int all[3] = {}, mine[3] = {7, 8, 9};
  host.all_gather(all, mine, sizeof(int));
  for (int v : all) EXPECT_EQ(v, 7);
  EXPECT_EQ(host.split(0, 2)->size(), 2);
  EXPECT_EQ(host.local_size(), 3);
}

// Ranks that are threads do not begin and end together.
TEST(Signals, ObjectsOfSeveralRanksAreAsOne) {
  auto first = std::make_unique<Signals>();
  std::raise(SIGTERM);
  const auto second = std::make_unique<Signals>();
  EXPECT_TRUE(Signals::caught());
  first.reset();
  std::raise(SIGUSR1);
  EXPECT_TRUE(Signals::caught());
}

TEST(Signals, OnlyTermAndIntEndARunThatIsOver) {
  { const Signals signals; }
  for (const int signal : {SIGUSR1, SIGUSR2, SIGHUP}) std::raise(signal);
  for (const int signal : {SIGTERM, SIGINT}) EXPECT_EXIT(std::raise(signal), testing::KilledBySignal(signal), "");
}

}  // namespace
}  // namespace octet
