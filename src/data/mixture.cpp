#include "data/mixture.h"

#include <cmath>

#include "base/check.h"

namespace octet {
namespace {

__extension__ typedef unsigned __int128 uint128;
uint64_t taken(uint64_t n, uint64_t share) { return uint64_t((uint128(n) * share) >> 63); }  // floor(n p), exact

}  // namespace

Mixture::Mixture(const std::vector<double>& weights) {
  CHECK(!weights.empty());
  for (const double w : weights)
    if (!(w > 0 && std::isfinite(w)))
      bad_input("a mixing weight of ", w, ": weights must be positive; leave out what should not be used");
  double rest = 0;
  shares_.resize(weights.size() - 1);
  for (size_t s = weights.size(); s-- > 0;) {
    rest += weights[s];
    if (s + 1 < weights.size()) shares_[s] = uint64_t(weights[s] / rest * 0x1p63);
  }
}

Mixture::Pick Mixture::pick(uint64_t n) const {
  for (size_t s = 0; s < shares_.size(); ++s) {
    const uint64_t before = taken(n, shares_[s]);
    if (taken(n + 1, shares_[s]) > before) return {s, before};
    n -= before;
  }
  return {shares_.size(), n};
}

}  // namespace octet
