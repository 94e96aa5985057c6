// A bounded map forgets what was not asked for the longest, and nothing else.
#include <gtest/gtest.h>

#include <stdexcept>

#include "base/recent.h"

namespace octet {
namespace {

struct Counted {  // cannot be copied or moved, as plans cannot
  Counted(int v, int& alive) : value(v), alive_(alive) {
    if (v < 0) throw std::runtime_error("refused");
    ++alive_;
  }
  Counted(const Counted&) = delete;
  ~Counted() { --alive_; }
  int value;

 private:
  int& alive_;
};

TEST(Recent, ForgetsWhatWasNotAskedForTheLongest) {
  int alive = 0;
  Recent<int, Counted> map(3);
  for (int k : {1, 2, 3}) map.make(k, 10 * k, alive);
  EXPECT_TRUE(map.full());
  EXPECT_EQ(map.find(1)->value, 10);  // now 2 is the oldest
  EXPECT_EQ(map.make(4, 40, alive).value, 40);
  EXPECT_EQ(alive, 3);
  EXPECT_EQ(map.find(2), nullptr);
  for (int k : {1, 3, 4}) EXPECT_EQ(map.find(k)->value, 10 * k);
  map.make(2, 21, alive);  // 1 is
  EXPECT_EQ(map.find(1), nullptr);
  EXPECT_EQ(map.find(2)->value, 21);
  map.clear();
  EXPECT_EQ(alive, 0);
}

TEST(Recent, AnEntryThatCannotBeMadeLeavesTheOthers) {
  int alive = 0;
  Recent<int, Counted> map(2);
  map.make(1, 1, alive), map.make(2, 2, alive);
  EXPECT_THROW(map.make(3, -1, alive), std::runtime_error);
  EXPECT_EQ(map.find(3), nullptr);
  EXPECT_EQ(map.find(1)->value, 1);
  EXPECT_EQ(map.find(2)->value, 2);
  EXPECT_EQ(alive, 2);
}

TEST(Recent, AThousandKeysTakeTheRoomOfAFew) {
  int alive = 0;
  Recent<int, Counted> map(16);
  for (int k = 0; k < 1000; ++k) {
    if (!map.find(k % 100)) map.make(k % 100, k, alive);
    ASSERT_LE(alive, 16);
    ASSERT_EQ(map.find(k % 100)->value % 100, k % 100);
  }
}

}  // namespace
}  // namespace octet
