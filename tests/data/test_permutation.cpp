// The order of an epoch is a permutation, another one for each key; a mixture keeps its proportions and skips nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/check.h"
#include "data/mixture.h"
#include "data/permutation.h"

namespace octet {
namespace {

TEST(Permutation, IsABijectionForAnySize) {
  for (const uint64_t n :
       {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 100, 127, 128, 129, 1000, 4095, 4097, 65536, 99991})
    for (uint64_t key = 0; key < 5; ++key) {
      const Permutation permutation(n, key);
      std::vector<bool> seen(n, false);
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t p = permutation(i);
        ASSERT_LT(p, n);
        ASSERT_FALSE(seen[p]) << "n " << n << " key " << key;
        seen[p] = true;
      }
    }
}

TEST(Permutation, StaysInRangeForHugeSizes) {
  for (const uint64_t n : {(uint64_t(1) << 40) - 1, (uint64_t(1) << 62) + 1}) {
    const Permutation permutation(n, 7);
    for (uint64_t i = 0; i < 1000; ++i) {
      ASSERT_LT(permutation(i), n);
      ASSERT_LT(permutation(n - 1 - i), n);
    }
  }
}

// Over 4000 keys each of n places is the first equally often: within 5 standard deviations of a binomial.
TEST(Permutation, FirstPlaceIsUniformOverKeys) {
  for (const uint64_t n : {2, 3, 5, 8, 10}) {
    std::vector<int> count(n, 0);
    for (uint64_t key = 0; key < 4000; ++key) ++count[Permutation(n, key)(0)];
    const double p = 1.0 / double(n), deviation = std::sqrt(4000 * p * (1 - p));
    for (uint64_t i = 0; i < n; ++i) EXPECT_NEAR(count[i], 4000 * p, 5 * deviation) << "n " << n << " place " << i;
  }
}

TEST(Mixture, NumbersEachSourceInOrderAndKeepsItsShareAtAllTimes) {
  const std::vector<double> weights = {1, 3, 0.001, 2.999};
  const Mixture mixture(weights);
  std::vector<uint64_t> count(4, 0);
  for (uint64_t i = 0; i < 20000; ++i) {
    const auto [source, number] = mixture.pick(i);
    ASSERT_EQ(number, count[source]++);
    for (size_t s = 0; s < 4; ++s) ASSERT_NEAR(double(count[s]), double(i + 1) * weights[s] / 7, 3);
  }
  const auto far = mixture.pick(uint64_t(1) << 62);
  EXPECT_LT(far.number, uint64_t(1) << 62);
  EXPECT_EQ(Mixture({5}).pick(17).number, 17u);
}

TEST(Mixture, RefusesWeightsThatAreNone) {
  for (const double w : {0.0, -1.0, double(INFINITY), double(NAN)}) EXPECT_THROW(Mixture({1, w}), InputError);
}

}  // namespace
}  // namespace octet
