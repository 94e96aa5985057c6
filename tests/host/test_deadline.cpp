// What waits beyond its deadline ends the process, and says for what; what is done in time goes on.
#include <gtest/gtest.h>

#include <chrono>

#include "host/deadline.h"

namespace octet {
namespace {

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

TEST(Deadline, WhatIsDoneInTimeGoesOn) {
  for (const double seconds : {0., 0.3}) { const Deadline limit(seconds, "never"); }
  {
    const Deadline none(0, "never");
    sleep_for(0.1);
  }
  sleep_for(0.6);  // and nobody watches any more
}

TEST(DeadlineDeathTest, WhatIsLateEndsWithThree) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto late = [] {
    const Deadline limit(0.2, "the third rank did not come");
    sleep_for(60);
  };
  EXPECT_EXIT(late(), testing::ExitedWithCode(3), "octet: the third rank did not come");
}

}  // namespace
}  // namespace octet
