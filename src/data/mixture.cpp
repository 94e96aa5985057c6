#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "data/permutation.h"

namespace octet {

Mixture::Mixture(const std::vector<double>& weights) {
  CHECK(!weights.empty() && weights.size() < kBlock, weights.size(), " weights");
  for (const double w : weights)
    if (!(w > 0 && std::isfinite(w))) bad_input("a mixing weight of ", w, ": weights must be positive; leave out what should not be used");
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);

  std::vector<uint64_t> places(weights.size());
  std::vector<std::pair<double, size_t>> remainders;  // negative remainder first: sorts the largest to the front
  for (size_t s = 0; s < weights.size(); ++s) {
    const double share = weights[s] / sum * double(kBlock);
    places[s] = std::max<uint64_t>(1, uint64_t(share));
    remainders.push_back({double(places[s]) - share, s});
  }
  std::sort(remainders.begin(), remainders.end());
  uint64_t used = std::accumulate(places.begin(), places.end(), uint64_t(0));
  for (size_t i = 0; used < kBlock; i = (i + 1) % places.size(), ++used) ++places[remainders[i].second];
  for (; used > kBlock; --used) --*std::max_element(places.begin(), places.end());  // the lifted ones took too many

  first_.assign(1, 0);
  for (const uint64_t p : places) first_.push_back(first_.back() + p);
}

Mixture::Pick Mixture::pick(uint64_t sample, uint64_t key) const {
  const uint64_t block = sample / kBlock;
  const uint64_t place = Permutation(kBlock, random_bits(key, 0, block))(sample % kBlock);
  const auto next = std::upper_bound(first_.begin(), first_.end(), place);
  const uint64_t s = uint64_t(next - first_.begin()) - 1;
  return {s, block * (first_[s + 1] - first_[s]) + place - first_[s]};
}

}  // namespace octet
