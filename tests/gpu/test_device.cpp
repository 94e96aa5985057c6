// The GPU keeps the contract of device.h: errors that say what to do, stream order, copies, graphs, times of ops.
#define BACKEND gpu
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "device/device.h"
#include "ops/decode.h"

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

TEST_F(GpuDevice, MorePageLockedMemoryThanThereIsIsRefusedToo) {
  Device d({});
  try {
    pinned_alloc(size_t{1} << 50);
    FAIL() << "a PiB";
  } catch (const SystemError& e) {
    EXPECT_NE(std::string(e.what()).find("page-locked"), std::string::npos) << e.what();
  }
  Stream s(d);
  s.synchronize();
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

TEST_F(GpuDevice, ARecordingRunsItsWorkEachTimeAndItsHostPartTwice) {
  for (const bool profile : {false, true}) {
    Device d({.profile = profile});
    Stream s(d);
    Recording recording(s);
    Tensor x{device_alloc(d, 64), DType::i32, {16}}, y{device_alloc(d, 64), DType::i32, {16}};
    fill_zero(s, x);
    int host = 0;
    const auto twice = [&] { advance(s, x), copy(s, y, x), advance(s, y), ++host; };  // y = ++x + 1
    const auto values = [&] {
      std::vector<int32_t> v(16);
      copy_to_host(s, v.data(), y.data, y.bytes());
      s.synchronize();
      return v;
    };
    for (int i = 1; i <= 5; ++i) {
      recording.run(twice);
      EXPECT_EQ(values(), std::vector<int32_t>(16, i + 1));
    }
    EXPECT_EQ(host, profile ? 5 : 2);  // what profiles asks for the times of each run
    recording.forget();
    for (int i = 0; i < 3; ++i) recording.run([&] { advance(s, x), advance(s, x), copy(s, y, x), ++host; });
    EXPECT_EQ(values(), std::vector<int32_t>(16, 5 + 6));
    EXPECT_EQ(host, profile ? 8 : 4);
    device_free(d, x.data);
    device_free(d, y.data);
  }
}

TEST_F(GpuDevice, WorkThatWaitsForTheDeviceIsNotRecordedAndErrorsGoThrough) {
  Device d({});
  Stream s(d);
  Recording waits(s), fails(s);
  Tensor x{device_alloc(d, 64), DType::i32, {16}};
  fill_zero(s, x);
  int host = 0;
  for (int i = 0; i < 4; ++i) waits.run([&] { advance(s, x), s.synchronize(), ++host; });
  EXPECT_EQ(host, 4);
  const auto work = [&] {
    advance(s, x);
    if (++host == 6) throw Error("in the midst of the recording");
  };
  fails.run(work);
  EXPECT_THROW(fails.run(work), Error);
  for (int i = 0; i < 3; ++i) fails.run(work);  // recorded now, and launched twice more
  EXPECT_EQ(host, 7);
  int32_t value = 0;
  copy_to_host(s, &value, x.data, sizeof value);
  s.synchronize();
  EXPECT_EQ(value, 4 + 1 + 3);
  device_free(d, x.data);
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
