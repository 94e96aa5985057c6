// The watchdog ends a silent rank with what it was doing, and leaves a slow one alone.
#include "cpu/tiny_model.h"
#include "host_wrapper.h"
#include "train/watchdog.h"

namespace octet::BACKEND {
namespace {

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
void begin_step_3(Watchdog& w) {
  for (int step = 1; step <= 3; ++step) w.enter(Phase::step, step);
}

TEST(Watchdog, EveryPhaseHasItsLimit) {
  LoneHost host;
  Watchdog w(host, 25);
  EXPECT_EQ(w.limit(), 1000);  // start
  for (int step = 1; step <= 2; ++step) {
    w.enter(Phase::step, step);
    EXPECT_EQ(w.limit(), 1000);
  }
  w.enter(Phase::step, 3);
  EXPECT_EQ(w.limit(), 25);
  EXPECT_EQ(w.where(), "step at step 3");
  w.enter(Phase::evaluation, 3);
  EXPECT_EQ(w.limit(), 25);
  w.enter(Phase::checkpoint, 3);
  EXPECT_EQ(w.limit(), 250);
  EXPECT_EQ(w.where(), "checkpoint at step 3");
  w.enter(Phase::start, 3);  // built anew
  w.enter(Phase::step, 4);
  EXPECT_EQ(w.limit(), 1000);
}

TEST(Watchdog, SlowStepsRaiseIt) {
  LoneHost host;
  Watchdog w(host, 2);
  begin_step_3(w);
  sleep_for(1.2);
  w.enter(Phase::step, 4);
  EXPECT_GE(w.limit(), 6);
  sleep_for(3);  // longer than 2 s: it lives
}

TEST(WatchdogDeathTest, ASilentRankEndsWithThreeAndSaysWhere) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto silent = [](double seconds) {
    LoneHost host;
    Watchdog w(host, seconds);
    begin_step_3(w);
    sleep_for(20);
  };
  EXPECT_EXIT(silent(1), testing::ExitedWithCode(3), "octet: no progress for 1 s in step at step 3");
}

// The first thing that ranks do together is the watchdog's own: who stopped before it would be waited for without end.
TEST(WatchdogDeathTest, ARankThatNeverComesIsNotWaitedForWithoutEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  struct Waits : HostWrapper {
    using HostWrapper::HostWrapper;
    int size() const override { return 2; }
    bool shares_memory() const override { return false; }
    void all_gather(void*, const void*, size_t) override { sleep_for(60); }
    const char* under_way() const override { return "all-gather"; }
  };
  const auto start = [] {
    LoneHost alone;
    Waits host(alone);
    Watchdog w(host, 0.05);  // a start may take 40 times that
  };
  EXPECT_EXIT(start(), testing::ExitedWithCode(3), "in start at step 0, waiting in: all-gather on the host");
}

TEST(Watchdog, MicroBatchesAndReportsAreProgress) {
  const Threads one{1};
  TinyTrainer t(tiny_config());
  const auto pulses = [&](auto&& work) {
    const int64_t before = t.session.pulse;
    work();
    return t.session.pulse - before;
  };
  EXPECT_EQ(pulses([&] { t.step(tiny_samples(t.session.config)); }), 2);  // 4 sequences, 2 at a time
  EXPECT_EQ(pulses([&] { t.report(1); }), 1);
  EXPECT_EQ(pulses([&] { t.evaluate(tiny_samples(t.session.config), 6); }), 3);
  LoneHost host;
  Watchdog w(host, 1.5);
  w.watch(&t.session);
  begin_step_3(w);
  for (int i = 0; i < 6; ++i) {  // longer than 1.5 s in one step, but never silent for so long
    sleep_for(0.5);
    ++t.session.pulse;
  }
  w.watch(nullptr);
}

}  // namespace
}  // namespace octet::BACKEND
