#pragma once
// Which source a sample of a weighted mixture comes from, as a pure function of the sample's index. The samples fall into
// blocks of 2^16; in each block source s has exactly c_s places (its weight's share, by largest remainders, at least
// one), whose order is permuted by (key, block). So the n-th sample from source s is found in O(log sources).
#include <cstdint>
#include <utility>
#include <vector>

namespace octet {

class Mixture {
 public:
  static constexpr uint64_t kBlock = uint64_t(1) << 16;
  explicit Mixture(const std::vector<double>& weights);  // positive and finite, not necessarily of sum 1

  struct Pick {
    uint64_t source, number;  // `number` counts that source's samples from 0 without gaps
  };
  Pick pick(uint64_t sample, uint64_t key) const;
  const std::vector<uint64_t>& first() const { return first_; }

 private:
  std::vector<uint64_t> first_;  // [sources + 1]: source s has the places [first_[s], first_[s + 1]) before permuting
};

}  // namespace octet
