// Writing in the background: what arrives, with little host memory and much, and what becomes of failures.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <future>
#include <numeric>

#include "train/background_writer.h"

namespace octet::cpu {
namespace {

constexpr int64_t kSmall = 4096;  // bytes of a buffer

class BackgroundWriterTest : public testing::Test {
 protected:
  // A write that puts elements into `to`, once `open` is.
  auto into(std::vector<float>& to, std::shared_future<void> open = {}) {
    return [&to, open](int64_t first, std::span<const std::byte> x) {
      if (open.valid()) open.wait();
      std::memcpy(to.data() + first, x.data(), x.size());
    };
  }
  static Tensor tensor(std::vector<float>& x) { return {x.data(), DType::f32, {int64_t(x.size())}}; }
  static std::vector<float> counted(size_t n, float from) {
    std::vector<float> x(n);
    std::iota(x.begin(), x.end(), from);
    return x;
  }
  Device device_{{}};
  Stream stream_{device_};
  std::atomic<int64_t> pulse_{0};
};

TEST_F(BackgroundWriterTest, AllElementsArriveInTwoBuffersAndInMany) {
  for (const int64_t room : {int64_t{0}, int64_t{1} << 30}) {
    BackgroundWriter writer(room, kSmall);
    for (int use = 0; use < 3; ++use) {  // its buffers are used again
      std::vector<std::vector<float>> from, to;
      for (const size_t n : {1, 3, 0, 1023, 1024, 1025, 20000, 2}) from.push_back(counted(n, float(n + 1)));
      for (const auto& x : from) to.emplace_back(x.size());
      bool ended = false;
      for (size_t i = 0; i < from.size(); ++i) writer.add(stream_, tensor(from[i]), into(to[i]), pulse_);
      writer.end(stream_, [&] { ended = to == from; });
      writer.wait(pulse_);
      EXPECT_TRUE(writer.done());
      EXPECT_TRUE(ended) << "the last call comes after all writes";
    }
  }
}

TEST_F(BackgroundWriterTest, WhatWasAddedMayChangeBeforeItIsWritten) {
  BackgroundWriter writer(1 << 20, kSmall);
  const std::vector<float> original = counted(5000, 1);
  std::vector<float> from = original, to(from.size());
  std::promise<void> gate;
  writer.add(stream_, tensor(from), into(to, gate.get_future().share()), pulse_);
  writer.end(stream_, [] {});
  EXPECT_FALSE(writer.done());
  std::fill(from.begin(), from.end(), -1.f);
  gate.set_value();
  writer.wait(pulse_);
  EXPECT_EQ(to, original);
  EXPECT_GE(pulse_, 1);
}

TEST_F(BackgroundWriterTest, MemoryIsThereBeforeItIsNeededAndNeverMoreThanThereIsRoom) {
  for (const auto& [room, bytes, expected] :
       {std::array<int64_t, 3>{20 * kSmall, 9 * kSmall + 1, 10 * kSmall}, {4 * kSmall, 9 * kSmall, 4 * kSmall}}) {
    BackgroundWriter writer(room, kSmall);
    EXPECT_EQ(writer.reserved(), 0);
    writer.reserve(bytes);
    for (int i = 0; i < 2000 && writer.reserved() < expected; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(writer.reserved(), expected);
    const std::vector<float> from = counted(size_t(bytes / 4), 1);
    std::vector<float> source = from, to(from.size());
    writer.add(stream_, tensor(source), into(to), pulse_);
    writer.end(stream_, [] {});
    writer.wait(pulse_);
    EXPECT_EQ(to, from);
    EXPECT_EQ(writer.reserved(), expected) << "no more was made";
  }
}

TEST_F(BackgroundWriterTest, TheFirstFailureIsThrownAndNothingIsWrittenAfterIt) {
  BackgroundWriter writer(0, kSmall);
  std::vector<float> from = counted(50000, 1);
  std::atomic<int> calls = 0;
  bool ended = false;
  writer.add(
      stream_, tensor(from),
      [&](int64_t, std::span<const std::byte>) {
        ++calls;
        throw SystemError("full");
      },
      pulse_);
  writer.end(stream_, [&] { ended = true; });
  EXPECT_THROW(writer.wait(pulse_), SystemError);
  EXPECT_LE(calls, 4) << "at most one a thread";
  EXPECT_FALSE(ended);
  std::vector<float> to(from.size());
  writer.add(stream_, tensor(from), into(to), pulse_);
  writer.end(stream_, [&] { ended = true; });
  writer.wait(pulse_);
  EXPECT_TRUE(ended && to == from) << "the next use is not concerned";
}

TEST_F(BackgroundWriterTest, OneThatIsDroppedWritesNoMore) {
  std::vector<float> from = counted(200000, 1);
  std::atomic<int> calls = 0;
  {
    BackgroundWriter writer(1 << 30, kSmall);
    writer.add(
        stream_, tensor(from),
        [&](int64_t, std::span<const std::byte>) {
          ++calls;
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        },
        pulse_);
    writer.end(stream_, [&] { calls = 1000; });
  }
  EXPECT_LT(calls, 100);
}

}  // namespace
}  // namespace octet::cpu
