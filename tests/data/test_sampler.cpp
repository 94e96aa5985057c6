// The sampler draws what its options allow, as often as the probabilities say, and the same for the same seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "data/sampler.h"

namespace octet {
namespace {

const std::vector<float> kLogits{1.0f, 3.0f, -2.0f, 2.5f, 0.0f, 2.9f};

std::map<int32_t, int> drawn(const Sampling& options, int times, const std::vector<int32_t>& prompt = {}) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < times; ++i) {
    std::vector<float> logits = kLogits;
    ++counts[Sampler(options, uint64_t(i), prompt).next(logits)];
  }
  return counts;
}
std::vector<double> probabilities(double temperature) {
  std::vector<double> p;
  double sum = 0;
  for (float x : kLogits) sum += p.emplace_back(std::exp(double(x) / temperature));
  for (double& x : p) x /= sum;
  return p;
}

TEST(Sampler, WithoutTemperatureTheLargestLogitWins) {
  EXPECT_EQ(drawn({}, 3), (std::map<int32_t, int>{{1, 3}}));
  std::vector<float> equal{1, 2, 2};
  EXPECT_EQ(Sampler({}, 0, {}).next(equal), 1);  // the first of equal ones
}

TEST(Sampler, DrawsAsOftenAsTheProbabilitiesSay) {
  constexpr int kTimes = 40000;
  for (const double temperature : {0.5, 1.0, 3.0}) {
    const auto counts = drawn({.temperature = temperature, .seed = 5}, kTimes);
    const auto p = probabilities(temperature);
    for (size_t i = 0; i < p.size(); ++i) {
      const double got = counts.contains(int32_t(i)) ? counts.at(int32_t(i)) : 0;
      EXPECT_NEAR(got, kTimes * p[i], 5 * std::sqrt(kTimes * p[i] * (1 - p[i])) + 1) << temperature << ", token " << i;
    }
  }
}

TEST(Sampler, TopKLeavesTheLikeliestInTheirProportion) {
  constexpr int kTimes = 20000;
  const auto counts = drawn({.temperature = 1, .top_k = 2, .seed = 1}, kTimes);
  ASSERT_EQ(counts.size(), 2u);
  const double p = 1 / (1 + std::exp(2.9f - 3.0f));
  EXPECT_NEAR(counts.at(1), kTimes * p, 5 * std::sqrt(kTimes * p * (1 - p)));
  EXPECT_TRUE(counts.contains(5));
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 1}, 50), (std::map<int32_t, int>{{1, 50}}));
  EXPECT_EQ(drawn({.temperature = 100, .top_k = 1000}, 2000).size(), kLogits.size());
}

// The smallest set of the likeliest whose probabilities reach p: descending they are 1, 5, 3, 0, 4, 2.
TEST(Sampler, TopPLeavesTheSmallestSetThatReachesIt) {
  const auto p = probabilities(1);
  const double two = p[1] + p[5], three = two + p[3];
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0}, 200).size(), 1u);
  EXPECT_EQ(drawn({.temperature = 1, .top_p = p[1] * 0.999}, 200).size(), 1u);
  EXPECT_EQ(drawn({.temperature = 1, .top_p = p[1] * 1.001}, 500).size(), 2u);
  EXPECT_EQ(drawn({.temperature = 1, .top_p = two * 0.999}, 500).size(), 2u);
  const auto counts = drawn({.temperature = 1, .top_p = three * 0.999}, 20000);
  ASSERT_EQ(counts.size(), 3u);
  EXPECT_NEAR(counts.at(3), 20000 * p[3] / three, 400);
  // behind top-k, of what that left
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 2, .top_p = 0.53}, 500).size(), 2u);
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 2, .top_p = 0.52}, 500).size(), 1u);
}

TEST(Sampler, TopPOfManyTokensFindsThemInAnyPlace) {  // more than are sorted at first
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = i % 5 == 3 ? 1.f : -30.f;
  std::map<int32_t, int> counts;
  for (uint64_t i = 0; i < 20000; ++i) {
    std::vector<float> copy = logits;
    ++counts[Sampler({.temperature = 1, .top_p = 0.9999}, i, {}).next(copy)];
  }
  EXPECT_GT(counts.size(), 990u);
  for (const auto& [token, times] : counts) EXPECT_EQ(token % 5, 3);
}

TEST(Sampler, ThePenaltyMakesWhatStoodBeforeLessLikely) {
  const std::vector<int32_t> prompt{1, 2, 1};
  Sampler sampler({.penalty = 1.5}, 0, prompt);
  std::vector<float> logits = kLogits;
  EXPECT_EQ(sampler.next(logits), 5);  // 3 / 1.5 = 2 is no longer the largest
  EXPECT_FLOAT_EQ(logits[1], 2.f);
  EXPECT_FLOAT_EQ(logits[2], -3.f);
  logits = kLogits;
  EXPECT_EQ(sampler.next(logits), 3);  // nor is 2.9 / 1.5, as it was generated
}

TEST(Sampler, TheSameSeedGivesTheSameAndAnotherAnother) {
  const auto sequence = [](uint64_t seed, uint64_t number) {
    Sampler sampler({.temperature = 2, .seed = seed}, number, {});
    std::vector<int32_t> ids;
    for (int i = 0; i < 40; ++i) {
      std::vector<float> logits = kLogits;
      ids.push_back(sampler.next(logits));
    }
    return ids;
  };
  EXPECT_EQ(sequence(3, 0), sequence(3, 0));
  EXPECT_NE(sequence(3, 0), sequence(4, 0));
  EXPECT_NE(sequence(3, 0), sequence(3, 1));
}

}  // namespace
}  // namespace octet
