// Arenas: aligned, counted, poisoned when memory is fresh or given back, and clear when the plan was too small.
#include <gtest/gtest.h>

#include <cmath>

#include "device/device.h"

namespace octet::BACKEND {
namespace {

struct ArenaTest : testing::Test {
  Device device{{.poison = true}};
  Stream stream{device};
};
bool all_nan(Tensor t) {
  bool nan = true;
  for (int64_t i = 0; i < t.numel(); ++i) nan &= std::isnan(t.ptr<float>()[i]);
  return nan;
}

TEST_F(ArenaTest, PartsAreAlignedAndDisjoint) {
  Arena arena(stream, "test", 4096);
  const Tensor a = arena.alloc(DType::bf16, {3}), b = arena.alloc(DType::f32, {64}), c = arena.alloc(DType::e4m3, {1});
  for (const Tensor& t : {a, b, c}) EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data) % 256, 0u);
  EXPECT_EQ(static_cast<char*>(b.data) - static_cast<char*>(a.data), 256);
  EXPECT_EQ(static_cast<char*>(c.data) - static_cast<char*>(b.data), 256);
  EXPECT_EQ(arena.mark(), 3u * 256);
}

TEST_F(ArenaTest, PeakIsTheMostThatWasInUse) {
  Arena arena(stream, "test", 2048);
  arena.alloc(DType::f32, {64});
  {
    const Arena::Scope scope(arena);
    arena.alloc(DType::f32, {128});
    EXPECT_EQ(arena.mark(), 768u);
  }
  EXPECT_EQ(arena.mark(), 256u);
  arena.alloc(DType::f32, {1});
  EXPECT_EQ(arena.peak(), 768u);
  arena.reset();
  EXPECT_EQ(arena.mark(), 0u);
  EXPECT_EQ(arena.peak(), 768u);
  EXPECT_EQ(arena.capacity(), 2048u);
}

TEST_F(ArenaTest, FreshAndReturnedMemoryIsNaN) {
  Arena arena(stream, "test", 2048);
  const Tensor kept = arena.alloc(DType::f32, {64});
  EXPECT_TRUE(all_nan(kept));
  fill_zero(stream, kept);
  const size_t mark = arena.mark();
  const Tensor t = arena.alloc(DType::f32, {192});
  EXPECT_TRUE(all_nan(t));
  fill_zero(stream, t);
  arena.rewind(mark);
  EXPECT_TRUE(all_nan(t));
  EXPECT_FALSE(std::isnan(kept.ptr<float>()[63]));  // only what was given back
  arena.reset();
  EXPECT_TRUE(all_nan(kept));
}

TEST_F(ArenaTest, WithoutPoisonMemoryIsLeftAlone) {
  Device plain({});
  Stream s(plain);
  Arena arena(s, "test", 256);
  const Tensor t = arena.alloc(DType::f32, {64});
  fill_zero(s, t);
  arena.reset();
  EXPECT_EQ(t.ptr<float>()[0], 0);
}

TEST_F(ArenaTest, OverflowNamesArenaShapeAndSizes) {
  Arena arena(stream, "scratch", 1024);
  arena.alloc(DType::f32, {128});
  try {
    arena.alloc(DType::f32, {3, 64});
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    const std::string what = e.what();
    for (const char* part : {"'scratch'", "1024 bytes", "(3, 64)", "768", "512 in use"})
      EXPECT_NE(what.find(part), std::string::npos) << what;
  }
  EXPECT_EQ(arena.mark(), 512u);  // and nothing was taken
  EXPECT_NO_THROW(arena.alloc(DType::f32, {2, 64}));
  EXPECT_THROW(arena.rewind(2048), Error);
}

TEST_F(ArenaTest, MayBeEmpty) {
  Arena arena(stream, "none", 0);
  EXPECT_EQ(arena.peak(), 0u);
  EXPECT_TRUE(bool(arena.alloc(DType::f32, {0})));
  EXPECT_THROW(arena.alloc(DType::f32, {1}), Error);
}

TEST_F(ArenaTest, TooMuchMemoryIsAnErrorWithItsSize) {
  try {
    device_alloc(device, SIZE_MAX - 1);
    FAIL() << "nothing was thrown";
  } catch (const SystemError& e) {
    EXPECT_NE(std::string(e.what()).find(std::to_string(SIZE_MAX - 1)), std::string::npos) << e.what();
  }
}

TEST_F(ArenaTest, DeviceKnowsItself) {
  EXPECT_FALSE(device.target().cuda);
  EXPECT_EQ(device.name().find("CPU, "), 0u);
  EXPECT_GT(device.total_bytes(), device.used_bytes());
  EXPECT_GT(device.used_bytes(), 0u);
  Event a(device), b(device);
  a.record(stream);
  b.record(stream);
  EXPECT_GE(b.seconds_since(a), 0);
}

}  // namespace
}  // namespace octet::BACKEND
