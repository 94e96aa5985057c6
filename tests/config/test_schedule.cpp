// Learning rates: the golden list, and peak and floor that are reached exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/json.h"
#include "config/config.h"
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
  for (int i = 16; i < 19; ++i) EXPECT_NEAR(lr[i], 3e-3 - 2.7e-3 * (i - 15) / 4, 1e-15) << i;
  EXPECT_EQ(lr[19], 3e-4);
  s.decay_steps.set(0), s.decay_fraction.set(0.2);
  EXPECT_EQ(decay_steps(s, 20), 4);
  EXPECT_EQ(decay_steps(s, 21), 5);
  for (const int64_t percent : {7, 14, 28, 55, 56}) {
    s.decay_fraction.set(double(percent) / 100);
    EXPECT_EQ(decay_steps(s, 100), percent);
    EXPECT_EQ(decay_steps(s, 101), percent + 1);
  }
  s.decay_fraction.set(0.2);
  EXPECT_EQ(rates(s, 20), lr);
  s.decay_fraction.set(0), s.warmup_steps.set(0);  // then the last step alone has the floor
  EXPECT_EQ(rates(s, 20)[18], 3e-3);
  EXPECT_EQ(rates(s, 20)[19], 3e-4);
}

// Where they would overlap, the warm-up is whole and the decay is shorter.
TEST(Schedule, ADecayBeginsAfterTheWarmUp) {
  ScheduleConfig s = schedule(ScheduleKind::wsd, 15);
  s.decay_steps.set(10);
  const std::vector<double> lr = rates(s, 20);
  for (int i = 0; i < 15; ++i) EXPECT_NEAR(lr[i], 3e-3 * (i + 1) / 15, 1e-15) << i;
  for (int i = 15; i < 20; ++i) EXPECT_NEAR(lr[i], 3e-3 - 2.7e-3 * (i - 15) / 4, 1e-15) << i;
}

// ---- runs whose length is given in tokens: 20 steps of 4 sequences of 16 tokens

RunConfig of_tokens(const std::vector<std::string>& more) {
  std::vector<std::string> all{"training.tokens=1280", "schedule.lr=3e-3", "schedule.min_lr=3e-4"};
  all.insert(all.end(), more.begin(), more.end());
  return parse_config(R"({"model": {"model_type": "llama", "vocab_size": 100, "hidden_size": 8, "intermediate_size": 8,
                                    "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 16},
                          "training": {"global_batch_size": 4}})",
                      "test", all);
}

TEST(Schedule, ARunOfTokensHasTheRatesOfTheSameRunInSteps) {
  for (const char* kind : {"cosine", "linear", "wsd", "constant"})
    for (const char* warmup : {"schedule.warmup_steps=0", "schedule.warmup_steps=5", "schedule.warmup_tokens=300"})
      for (const char* length : {"training.tokens=1280", "training.tokens=1217"}) {
        const RunConfig tokens = of_tokens({length, concat("schedule.kind=", kind), warmup});
        RunConfig steps = tokens;
        steps.training.steps.set(20), steps.training.tokens.set(7);  // which are not used then
        for (int64_t step = 0; step < 20; ++step) {
          const Done done{step, 4 * step, 64 * step};
          EXPECT_EQ(learning_rate(tokens, done), learning_rate(steps, done)) << kind << ' ' << warmup << ' ' << step;
          EXPECT_EQ(total_steps(tokens, done), 20);
        }
        EXPECT_EQ(learning_rate(steps, {19, 76, 1216}), kind == std::string("constant") ? 3e-3 : 3e-4) << kind;
      }
}

// After 4 steps of 64 tokens the batch is doubled: 8 steps more. A warm-up of 8 steps goes on to its end, and then the
// run does not fall back into it, although by tokens it stands where a run of 10 such steps would be at its seventh.
TEST(Schedule, ARunOfTokensWhoseBatchesGrowFinishesItsWarmUpAndEndsAtTheFloor) {
  const RunConfig c = of_tokens({"training.global_batch_size=8", "schedule.kind=linear", "schedule.warmup_steps=8"});
  for (int64_t step = 4; step < 12; ++step) {
    const Done done{step, 16 + 8 * (step - 4), 256 + 128 * (step - 4)};
    EXPECT_EQ(total_steps(c, done), 12);
    const double want = step < 8 ? 3e-3 * double(step + 1) / 8 : step < 11 ? 3e-3 : 3e-4;
    EXPECT_NEAR(learning_rate(c, done), want, 1e-15) << step;
  }
}

TEST(Schedule, ConstantStaysAtThePeak) {
  const std::vector<double> lr = rates(schedule(ScheduleKind::constant, 2), 10);
  EXPECT_EQ(lr[0], 1.5e-3);
  for (size_t i = 1; i < lr.size(); ++i) EXPECT_EQ(lr[i], 3e-3);
}

TEST(Schedule, AWarmUpInTokensIsRoundedUpToSteps) {
  ScheduleConfig s = schedule(ScheduleKind::cosine, 0);
  for (const auto& [tokens, steps] : std::map<int64_t, int64_t>{{1, 1}, {384, 1}, {385, 2}, {1526, 4}, {1536, 4}}) {
    s.warmup_tokens.set(tokens);
    EXPECT_EQ(warmup_steps(s, 384), steps) << tokens;
    EXPECT_EQ(rates(s, 20, 384), rates(schedule(ScheduleKind::cosine, steps), 20)) << tokens;
  }
  s.warmup_steps.set(2);  // goes before them
  EXPECT_EQ(warmup_steps(s, 384), 2);
}

TEST(Schedule, ARunOfOneStepHasThePeak) { EXPECT_EQ(rates(schedule(ScheduleKind::cosine, 0), 1)[0], 3e-3); }

}  // namespace
}  // namespace octet
