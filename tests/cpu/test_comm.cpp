// The cpu engine's collectives: each rank gets exactly the sum in the order of ranks, by shared memory and by messages.
// tests/mpi does the same between processes.
#include <gtest/gtest.h>

#include "comm_checks.h"
#include "host_wrapper.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

// A thread that must speak in messages, as a process does.
class Talkative final : public HostWrapper {
 public:
  using HostWrapper::HostWrapper;
  bool shares_memory() const override { return false; }
};

TEST(Comm, SharedMemoryIsExact) {
  for (int ranks : {1, 2, 3, 4}) run_ranks(ranks, check_all);
}

TEST(Comm, MessagesAreExact) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](Host& host) {
      Talkative talkative(host);
      check_all(talkative);
    });
}

TEST(Comm, AloneIsExact) {
  LoneHost host;
  check_all(host);
}

TEST(Comm, GroupsAreIndependent) {
  run_ranks(4, [](Host& host) {
    const auto group = host.split(host.rank() % 2, 2);
    Device device({});
    Stream s(device);
    const auto comm = make_comm(device, *group);
    for (int round = 0; round < 50; ++round) {
      std::vector<float> x{float(host.rank() + 10 * round)};
      comm->all_reduce(s, view(x), Reduce::sum);
      ASSERT_EQ(x[0], float(2 * (host.rank() % 2) + 2 + 20 * round));
    }
  });
}

TEST(Comm, RanksThatDisagreeAreStopped) {
  const auto disagree = [](Host& host) {
    Device device({});
    Stream s(device);
    std::vector<float> x(size_t(host.rank() + 1));
    make_comm(device, host)->all_reduce(s, view(x), Reduce::sum);
  };
  EXPECT_THROW(run_threads(2, disagree), Error);
}

TEST(Comm, FailingRankEndsTheOthers) {
  const auto fail_on_1 = [](Host& host) {
    Device device({});
    Stream s(device);
    const auto comm = make_comm(device, host);
    std::vector<float> x(100);
    for (int step = 0;; ++step) {
      if (step == 3 && host.rank() == 1) bad_input("rank 1 met something");
      comm->all_reduce(s, view(x), Reduce::sum);
    }
  };
  try {
    run_threads(3, fail_on_1);
    FAIL() << "nothing was thrown";
  } catch (const InputError& e) { EXPECT_STREQ(e.what(), "rank 1 met something"); }
}

}  // namespace
}  // namespace octet::BACKEND
