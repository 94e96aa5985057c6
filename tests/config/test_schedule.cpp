// Learning rates: the golden list, and peak and floor that are reached exactly.
#include <gtest/gtest.h>

#include "base/json.h"
#include "config/schedule.h"
#include "golden.h"

namespace octet {
namespace {

ScheduleConfig schedule(ScheduleKind kind, int64_t warmup) {
  ScheduleConfig s;
  s.kind.set(kind), s.lr.set(3e-3), s.min_lr.set(3e-4), s.warmup_steps.set(warmup);
  return s;
}
std::vector<double> rates(const ScheduleConfig& s, int64_t total, int64_t tokens_per_step = 0) {
  std::vector<double> list;
  for (int64_t step = 0; step < total; ++step) list.push_back(learning_rate(s, step, total, tokens_per_step));
  return list;
}

TEST(Schedule, CosineIsTheGoldenOne) {
  const json lr = read_json(golden("llama-gqa/trajectory.json"))["lr"];
  const std::vector<double> ours = rates(schedule(ScheduleKind::cosine, 4), 20);
  ASSERT_EQ(lr.size(), ours.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], lr[i].get<double>(), 1e-12) << i;
}

TEST(Schedule, PeakAndFloorAreReachedExactly) {
  for (ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd})
    for (int64_t warmup : {0, 1, 7, 49})
      for (int64_t total : {2, 50, 1000}) {
        if (warmup >= total) continue;
        const std::vector<double> lr = rates(schedule(kind, warmup), total);
        EXPECT_EQ(lr.back(), 3e-4) << warmup << " " << total;
        EXPECT_EQ(*std::max_element(lr.begin(), lr.end()), 3e-3) << warmup << " " << total;
        EXPECT_EQ(lr[warmup ? warmup - 1 : 0], 3e-3) << warmup << " " << total;
        EXPECT_EQ(learning_rate(schedule(kind, warmup), total + 5, total, 0), 3e-4);
      }
}

TEST(Schedule, LinearFallsInEqualSteps) {
  const std::vector<double> lr = rates(schedule(ScheduleKind::linear, 1), 11);
  for (size_t i = 1; i < lr.size(); ++i) EXPECT_NEAR(lr[i], 3e-3 - 2.7e-3 * double(i - 1) / 9, 1e-15);
}

TEST(Schedule, WsdIsConstantAndThenFallsOverItsDecay) {
  ScheduleConfig s = schedule(ScheduleKind::wsd, 2);
  s.decay_steps.set(4);
  const std::vector<double> lr = rates(s, 20);
  for (int i = 1; i <= 15; ++i) EXPECT_EQ(lr[i], 3e-3) << i;
  EXPECT_NEAR(lr[17], (3e-3 + 3e-4) / 2, 1e-15);
  EXPECT_EQ(lr[19], 3e-4);
  s.decay_steps.set(0), s.decay_fraction.set(0.2);
  EXPECT_EQ(decay_steps(s, 20), 4);
  EXPECT_EQ(rates(s, 20), lr);
  s.decay_fraction.set(0), s.warmup_steps.set(0);  // then the last step alone has the floor
  EXPECT_EQ(rates(s, 20)[18], 3e-3);
  EXPECT_EQ(rates(s, 20)[19], 3e-4);
}

TEST(Schedule, ConstantStaysAtThePeak) {
  const std::vector<double> lr = rates(schedule(ScheduleKind::constant, 2), 10);
  EXPECT_EQ(lr[0], 1.5e-3);
  for (size_t i = 1; i < lr.size(); ++i) EXPECT_EQ(lr[i], 3e-3);
}

TEST(Schedule, AWarmUpInTokensIsRoundedUpToSteps) {
  ScheduleConfig s = schedule(ScheduleKind::cosine, 0);
  s.warmup_tokens.set(4 * 384 - 10);
  EXPECT_EQ(warmup_steps(s, 384), 4);
  EXPECT_EQ(rates(s, 20, 384), rates(schedule(ScheduleKind::cosine, 4), 20));
}

TEST(Schedule, ARunOfOneStepHasThePeak) { EXPECT_EQ(rates(schedule(ScheduleKind::cosine, 0), 1)[0], 3e-3); }

}  // namespace
}  // namespace octet
