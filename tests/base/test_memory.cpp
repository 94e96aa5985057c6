// How much memory is free, from files as the kernel writes them.
#include <gtest/gtest.h>

#include <fstream>

#include "base/memory.h"

namespace octet {
namespace {

class Machine : public testing::Test {  // /proc and /sys of a machine with 100 GiB available
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(testing::TempDir()) / ("octet-memory-" + std::to_string(::getpid()));
    put("proc/meminfo", "MemTotal:       131072000 kB\nMemFree:         1024 kB\nMemAvailable:   104857600 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void put(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  std::filesystem::path root_;
};
constexpr int64_t kGiB = int64_t{1} << 30;

TEST_F(Machine, WithoutControlGroupsIsAsFreeAsTheKernelSays) { EXPECT_EQ(available_memory(root_), 100 * kGiB); }
TEST_F(Machine, AGroupLeavesItsLimitLessWhatItUses) {
  put("proc/self/cgroup", "0::/jobs/step\n");
  put("sys/fs/cgroup/jobs/step/memory.max", "max\n");
  put("sys/fs/cgroup/jobs/step/memory.current", "4096\n");
  put("sys/fs/cgroup/jobs/memory.max", std::to_string(10 * kGiB));
  put("sys/fs/cgroup/jobs/memory.current", std::to_string(7 * kGiB));
  put("sys/fs/cgroup/jobs/memory.stat", "anon 12345\ninactive_file " + std::to_string(kGiB) + "\nfile 99\n");
  EXPECT_EQ(available_memory(root_), 4 * kGiB);
}
TEST_F(Machine, AContainerSeesItsGroupAsTheTop) {
  put("proc/self/cgroup", "0::/docker/0123456789\n");
  put("sys/fs/cgroup/memory.max", std::to_string(8 * kGiB));
  put("sys/fs/cgroup/memory.current", std::to_string(3 * kGiB));
  EXPECT_EQ(available_memory(root_), 5 * kGiB);
}
TEST_F(Machine, GroupsOfVersionOneCount) {
  put("proc/self/cgroup", "7:cpu,cpuacct:/a\n5:hugetlb,memory:/a\n1:name=systemd:/a\n");
  put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", std::to_string(6 * kGiB));
  put("sys/fs/cgroup/memory/a/memory.usage_in_bytes", std::to_string(4 * kGiB));
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(90 * kGiB));
  EXPECT_EQ(available_memory(root_), 2 * kGiB);
}
TEST_F(Machine, AGroupBeyondItsLimitLeavesNothing) {
  put("proc/self/cgroup", "0::/\n");
  put("sys/fs/cgroup/memory.max", "1000");
  put("sys/fs/cgroup/memory.current", "2000");
  EXPECT_EQ(available_memory(root_), 0);
}
TEST(ThisMachine, HasSomeMemory) { EXPECT_GT(available_memory(), 1 << 20); }

}  // namespace
}  // namespace octet
