// The sampler draws what its options allow, as often as the probabilities say, and the same for the same seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "base/rng.h"
#include "data/sampler.h"
#include "data/vocabulary_math.h"

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

// What the definition draws, sum by sum over all tokens in order.
int32_t drawn_by_definition(const std::vector<float>& logits, const Sampling& o, uint64_t sequence, uint64_t position) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const bool sorts = o.top_p < 1 || (o.top_k > 0 && o.top_k < int64_t(order.size()));
  if (sorts)
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
  if (o.top_k > 0) order.resize(std::min(order.size(), size_t(o.top_k)));
  const long double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<long double> up_to;  // the sum of the first
  for (long double sum = 0; const int32_t token : order)
    up_to.push_back(sum += std::exp(((long double)logits[size_t(token)] - largest) / (long double)o.temperature));
  if (o.top_p < 1) {
    size_t kept = 1;
    while (kept < order.size() && up_to[kept - 1] < (long double)o.top_p * up_to.back()) ++kept;
    up_to.resize(kept);
  }
  const long double at = (long double)uniform(o.seed, sequence, position) * up_to.back();
  for (size_t i = 0; i < up_to.size(); ++i)
    if (up_to[i] > at) return order[i];
  return -1;
}

// Of any size, around those of the blocks; with equal logits, impossible tokens, and all kinds of options.
TEST(Sampler, DrawsWhatTheDefinitionDraws) {
  std::mt19937 random(4);
  int compared = 0;
  for (const size_t size : {1, 2, 63, 64, 65, 255, 256, 257, 1000, 4097})
    for (const double width : {0.1, 3.0, 40.0})
      for (const bool equal : {false, true}) {
        std::vector<float> logits(size);
        for (float& x : logits) {
          x = std::normal_distribution<float>(-2, float(width))(random);
          if (equal) x = std::round(x * 4) / 4;
          if (equal && random() % 7 == 0) x = -INFINITY;
        }
        logits[size / 2] = 1;  // one at least is possible
        for (const double temperature : {0.01, 0.8, 30.0})
          for (const int64_t top_k : {0, 1, 7, 50, 300})
            for (const double top_p : {1.0, 0.999, 0.95, 0.3, 0.0}) {
              const Sampling o{.temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = size};
              Sampler sampler(o, 9, {});
              for (uint64_t position = 0; position < 4; ++position) {
                std::vector<float> copy = logits;
                ASSERT_EQ(sampler.next(copy), drawn_by_definition(logits, o, 9, position))
                    << size << " logits of width " << width << ", temperature " << temperature << ", top_k " << top_k
                    << ", top_p " << top_p << ", position " << position;
                ++compared;
              }
            }
      }
  EXPECT_EQ(compared, 10 * 3 * 2 * 3 * 5 * 5 * 4);
}

TEST(Sampler, LogitsThatAreNoNumbersGiveSomeToken) {
  for (const float none : {std::nanf(""), INFINITY, -INFINITY})
    for (const int every : {1, 2, 100}) {
      std::vector<float> logits(3000);
      for (size_t i = 0; i < logits.size(); ++i) logits[i] = int(i) % every == 0 ? none : float(i % 17);
      for (const double temperature : {0.0, 0.8})
        for (const int64_t top_k : {0, 1, 50, 2000})
          for (const double top_p : {1.0, 0.9}) {
            Sampler sampler({.temperature = temperature, .top_k = top_k, .top_p = top_p, .penalty = 1.1}, 0, {});
            for (int i = 0; i < 3; ++i) {
              std::vector<float> copy = logits;
              const int32_t token = sampler.next(copy);
              ASSERT_TRUE(token >= 0 && token < 3000) << token;
            }
          }
    }
}

TEST(Sampler, ItsExponentialsAreRight) {
  std::vector<float> x(1000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 3 - float(i) * 0.75f;
  x[7] = -INFINITY;
  std::vector<double> w(x.size()), sums(4);
  exponentials(x, 3, 0.9, w, sums);
  std::vector<double> expected(4, 0.);
  for (size_t i = 0; i < x.size(); ++i) {
    const double power = (double(x[i]) - 3) / 0.9, exact = std::exp(power);
    ASSERT_NEAR(w[i], exact, exact > 0 ? exact * (1e-15 - 3e-16 * power) : 0) << i;  // a rounding of the power shows
    expected[i / kSumBlock] += w[i];
  }
  for (size_t b = 0; b < 4; ++b) EXPECT_NEAR(sums[b], expected[b], expected[b] * 1e-14) << b;
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
