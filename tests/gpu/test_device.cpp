// The GPU as device.h promises it: refusals that say what to do, order of streams, copies, times of ops.
#define BACKEND gpu
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "device/device.h"
#include "ops/ops.h"

namespace octet::gpu {
namespace {

class GpuDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_available()) GTEST_SKIP() << "no GPU";
  }
};

TEST(GpuCount, IsAnAnswerWithoutADriverToo) { EXPECT_EQ(device_available(), device_count() > 0); }

TEST(GpuCount, ACardThatIsNotThereIsRefusedWithAdvice) {
  try {
    Device d({.index = device_count()});
    FAIL() << "a device beyond the last";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find(concat("CUDA sees ", device_count())), std::string::npos) << e.what();
  }
}

TEST_F(GpuDevice, MoreMemoryThanThereIsIsRefusedWithSizes) {
  Device d({});
  EXPECT_TRUE(d.target().cuda);
  EXPECT_GT(d.target().compute_capability, 0);
  EXPECT_GT(d.target().multiprocessors, 0);
  try {
    device_alloc(d, 2 * d.total_bytes());
    FAIL() << "twice the memory of the card";
  } catch (const SystemError& e) {
    EXPECT_NE(std::string(e.what()).find("GiB are free"), std::string::npos) << e.what();
  }
  Stream s(d);
  s.synchronize();  // the refusal left no error behind
}

TEST_F(GpuDevice, UsedBytesGrowByAnAllocation) {
  Device d({});
  Stream s(d);
  constexpr size_t kBytes = size_t{256} << 20;
  const size_t before = d.used_bytes();
  void* p = device_alloc(d, kBytes);
  EXPECT_GE(d.used_bytes(), before + kBytes);
  EXPECT_LE(d.used_bytes(), d.total_bytes());
  device_free(d, p);
}

TEST_F(GpuDevice, AnEventOrdersStreamsAndCopiesKeepBytes) {
  Device d({});
  Stream a(d), b(d, Stream::Priority::high);
  constexpr int64_t n = 1 << 22;
  Tensor x{device_alloc(d, n * 4), DType::i32, {n}}, y{device_alloc(d, n * 4), DType::i32, {n}};
  auto* host = static_cast<int32_t*>(pinned_alloc(n * 4));
  std::iota(host, host + n, 1);
  Event started(d), written(d);
  started.record(a);
  copy_to_device(a, x.data, host, x.bytes());
  written.record(a);
  written.wait(b);
  copy(b, y, x);
  fill_zero(b, y.part(0, {16}));
  b.synchronize();
  std::vector<int32_t> back(n);
  copy_to_host(b, back.data(), y.data, y.bytes());
  b.synchronize();
  std::fill(host, host + 16, 0);
  EXPECT_TRUE(std::equal(back.begin(), back.end(), host));
  EXPECT_GT(written.seconds_since(started), 0);
  EXPECT_LT(written.seconds_since(started), 1);
  pinned_free(host);
  device_free(d, x.data);
  device_free(d, y.data);
}

TEST_F(GpuDevice, CountsAndTimesOpsOnlyWhenItProfiles) {
  for (const bool profile : {false, true}) {
    Device d({.profile = profile});
    Stream s(d);
    Tensor x{device_alloc(d, 1 << 20), DType::f32, {256, 1024}}, y{device_alloc(d, 1 << 20), DType::f32, {256, 256}};
    fill_zero(s, x);
    for (int i = 0; i < 3; ++i) gemm(s, {.d = y, .a = {x}, .b = {x}});
    const WorkLog work = d.take_work();
    EXPECT_EQ(work[size_t(Kernel::gemm_f32)].calls, profile ? 3 : 0);
    EXPECT_EQ(work[size_t(Kernel::gemm_f32)].seconds > 0, profile);
    EXPECT_EQ(d.take_work()[size_t(Kernel::gemm_f32)].calls, 0);
    device_free(d, x.data);
    device_free(d, y.data);
  }
}

}  // namespace
}  // namespace octet::gpu
