#pragma once
// A keyed permutation of [0, n) without a table: order of an epoch from (seed, epoch) alone, at any point in O(1).
// A Feistel network permutes the smallest power of two that holds n; a value that lands outside [0, n) is permuted
// again until it lands inside (cycle walking: Black and Rogaway 2002), on average less than twice.
#include <bit>
#include <cstdint>

#include "base/rng.h"

namespace octet {

class Permutation {
 public:
  constexpr Permutation(uint64_t n, uint64_t key) : n_(n), key_(key) {
    const int bits = n > 1 ? int(std::bit_width(n - 1)) : 0;
    low_bits_ = bits - bits / 2;
    high_bits_ = bits / 2;
  }

  constexpr uint64_t operator()(uint64_t i) const {  // i < n
    if (n_ <= 1) return i;
    do i = shuffle(i);
    while (i >= n_);
    return i;
  }

 private:
  // The halves may differ by one bit in width; each round changes one half by a function of the
  // other, so it can be undone.
  constexpr uint64_t shuffle(uint64_t i) const {
    const uint64_t low_mask = (uint64_t(1) << low_bits_) - 1, high_mask = (uint64_t(1) << high_bits_) - 1;
    uint64_t low = i & low_mask, high = i >> low_bits_;
    for (uint64_t round = 0; round < kRounds; round += 2) {
      low = (low + random_bits(key_, round, high)) & low_mask;
      high = (high + random_bits(key_, round + 1, low)) & high_mask;
    }
    return high << low_bits_ | low;
  }

  static constexpr uint64_t kRounds =
      8;  // 4 make a Feistel network pseudorandom (Luby and Rackoff 1988); small halves want more
  uint64_t n_, key_;
  int low_bits_ = 0, high_bits_ = 0;
};

}  // namespace octet
