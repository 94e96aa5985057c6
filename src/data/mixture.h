#pragma once
// Which source a sample of a weighted mixture comes from, as a pure function of the sample's index. Sources are split
// off one after another: of the first n samples that reach source s it takes floor(n p_s), p_s its share of the weights
// left. So after any number of samples each source has its share to within one sample a split, its samples come in its
// own order without gaps, and they are spread evenly.
#include <cstdint>
#include <vector>

namespace octet {

class Mixture {
 public:
  explicit Mixture(const std::vector<double>& weights);  // positive and finite, not necessarily of sum 1

  struct Pick {
    uint64_t source, number;  // `number` counts that source's samples from 0
  };
  Pick pick(uint64_t sample) const;

 private:
  std::vector<uint64_t> shares_;  // p_s in units of 2^-63, for each source but the last
};

}  // namespace octet
