// What fails on one rank is every rank's failure at the next agree(): the same message, nobody waits for who left.
#include <filesystem>
#include <mutex>
#include <tuple>

#include "host/attempts.h"
#include "host/launch.h"
#include "ranks.h"

namespace octet {
namespace {

// What agree() threw on each rank after `attempt` had its turn there.
std::vector<std::string> told(int ranks, int code, const std::function<void(int rank, Attempts&)>& attempt) {
  std::vector<std::string> messages(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Host& host) {
    Attempts files(host);
    attempt(host.rank(), files);
    try {
      files.agree();
    } catch (const AttemptFailed& e) {
      messages[size_t(host.rank())] = e.what();
      EXPECT_EQ(e.exit_code(), code);
    }
    files.agree();  // what was told is done with
  });
  return messages;
}

TEST(Attempts, NothingIsThrownWhereNothingFailed) {
  int calls = 0;
  std::mutex mutex;
  const auto count = [&](int, Attempts& files) {
    for (int i = 0; i < 2; ++i)
      files([&] {
        const std::lock_guard lock(mutex);
        ++calls;
      });
  };
  EXPECT_EQ(told(3, 0, count), std::vector<std::string>(3));
  EXPECT_EQ(calls, 6);
}

TEST(Attempts, EveryRankHearsOfTheFirstThatFailed) {
  const auto fail = [](int rank, Attempts& files) {
    if (rank > 0) files([&] { throw SystemError(concat("the disk of ", rank, " is full")); });
    files([&] { EXPECT_EQ(rank, 0) << "after a failure nothing is attempted"; });
  };
  const std::string rank_1 = "rank 1 on " + machine_name() + ": ";
  EXPECT_EQ(told(2, 3, fail), std::vector<std::string>(2, rank_1 + "the disk of 1 is full"));
  EXPECT_EQ(told(4, 3, fail), std::vector<std::string>(4, rank_1 + "the disk of 1 is full (and so on 2 other ranks)"));
}

TEST(Attempts, TheExitCodeIsThatOfTheFailure) {
  const auto bad = [](int rank, Attempts& files) {
    if (rank == 0) files([] { bad_input("no such folder"); });
  };
  EXPECT_EQ(told(2, 2, bad), std::vector<std::string>(2, "no such folder"));
  const auto missing = [](int rank, Attempts& files) {
    if (rank == 0) files([] { std::ignore = std::filesystem::file_size("/no such file"); });
  };
  for (const std::string& message : told(2, 2, missing)) EXPECT_NE(message.find("/no such file"), std::string::npos);
}

TEST(Attempts, AFaultOfTheProgramEndsTheRun) {
  const auto wrong = [](int rank, Attempts& files) { files([&] { CHECK(rank != 1, "rank 1 is wrong"); }); };
  EXPECT_THROW(told(2, 0, wrong), Error);
}

}  // namespace
}  // namespace octet
