// Ranks as processes: this program starts itself under mpirun. Messages are exact, groups form, a rank that fails ends
// the others with its exit code.
#define BACKEND cpu
#include "comm_checks.h"
#include "host/launch.h"
#include "mpi/mpirun.h"

namespace octet::cpu {
namespace {

TEST_F(Mpi, CollectivesAreExact) {
  for (int ranks : {1, 2, 3, 4})
    EXPECT_EQ(under_mpirun(ranks, "Collectives"), 0) << ranks << " ranks: mpi_Collectives.log";
}
TEST_F(Mpi, GroupsAndMachines) { EXPECT_EQ(under_mpirun(4, "Groups", "OCTET_LOCAL_SIZE=2"), 0) << "mpi_Groups.log"; }
TEST_F(Mpi, AbortEndsTheJobWithItsCode) { EXPECT_EQ(under_mpirun(3, "Abort"), 3) << "mpi_Abort.log"; }
TEST_F(Mpi, RankThatLeavesByAnExceptionEndsTheJob) {
  const int code = under_mpirun(3, "Leave");
  EXPECT_NE(code, 0);
  EXPECT_NE(code, 124) << "it hung: mpi_Leave.log";
}

// ---- what the started processes do
TEST(Child, DISABLED_Collectives) {
  const auto host = started();
  ASSERT_FALSE(host->shares_memory());
  ASSERT_EQ(host->size(), launch().ranks);
  check_all(*host);
}
TEST(Child, DISABLED_Groups) {
  const auto host = started();
  EXPECT_EQ(host->local_size(), 2);
  EXPECT_EQ(host->local_rank(), host->rank() % 2);
  const auto group = host->split(host->rank() % 2, 2);
  EXPECT_EQ(group->rank(), host->rank() / 2);
  EXPECT_EQ(group->local_rank(), host->rank() % 2);
  check_all(*group);
  int all[2];
  const int mine = host->rank();
  group->all_gather(all, &mine, sizeof mine);
  EXPECT_EQ(all[0], host->rank() % 2);
  EXPECT_EQ(all[1], host->rank() % 2 + 2);
}
TEST(Child, DISABLED_Abort) {
  const auto host = started();
  if (host->rank() == 1) host->abort(3);
  host->barrier();
}
TEST(Child, DISABLED_Leave) {
  const auto host = started();
  if (host->rank() == 1) bad_input("rank 1 met something");
  host->barrier();
}

}  // namespace
}  // namespace octet::cpu
