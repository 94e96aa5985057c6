#include "data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"

namespace octet {

Sampler::Sampler(const Sampling& options, uint64_t sequence, std::span<const int32_t> prompt)
    : options_(options), sequence_(sequence) {
  for (int32_t token : prompt) see(token);
}

void Sampler::see(int32_t token) {
  if (size_t(token) >= is_seen_.size()) is_seen_.resize(size_t(token) + 1);
  if (is_seen_[size_t(token)]) return;
  is_seen_[size_t(token)] = true;
  seen_.push_back(token);
}

int32_t Sampler::next(std::span<float> logits) {
  CHECK(!logits.empty(), "no logits");
  if (options_.penalty != 1)  // Keskar et al. 2019 (CTRL), arXiv:1909.05858
    for (int32_t token : seen_) {
      float& x = logits[size_t(token)];
      x = x < 0 ? x * float(options_.penalty) : x / float(options_.penalty);
    }
  const int32_t token = options_.temperature == 0
                            ? int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin())
                            : draw(logits);
  ++position_;
  see(token);
  return token;
}

// By descending logit, of equal ones the lower index first: candidates are cut behind the k-th (top-k) and behind the
// one that brings the sum of probabilities to p (top-p, Holtzman et al. 2019, arXiv:1904.09751), of those top-k left.
int32_t Sampler::draw(std::span<float> logits) {
  const auto before = [&](int32_t a, int32_t b) {
    const float x = logits[size_t(a)], y = logits[size_t(b)];
    return x > y || (x == y && a < b);
  };
  std::vector<int32_t>& all = candidates_;
  all.resize(logits.size());
  std::iota(all.begin(), all.end(), 0);
  if (options_.top_k > 0 && options_.top_k < int64_t(all.size())) {
    std::partial_sort(all.begin(), all.begin() + options_.top_k, all.end(), before);
    all.resize(size_t(options_.top_k));
  }
  const float largest = logits[size_t(*std::min_element(all.begin(), all.end(), before))];
  weights_.resize(logits.size());
  double sum = 0;
  for (int32_t token : all)
    sum += weights_[size_t(token)] = std::exp((double(logits[size_t(token)]) - double(largest)) / options_.temperature);
  if (options_.top_p < 1) {
    double part = 0;
    size_t kept = 0, sorted = 0;  // mostly few are kept: no more is sorted than is looked at
    while (kept < all.size() && (kept == 0 || part < options_.top_p * sum)) {
      if (kept == sorted) {
        sorted = std::min(all.size(), 4 * sorted + 64);
        std::partial_sort(all.begin() + ptrdiff_t(kept), all.begin() + ptrdiff_t(sorted), all.end(), before);
      }
      part += weights_[size_t(all[kept++])];
    }
    all.resize(kept);
    sum = part;
  }
  double left = uniform(options_.seed, sequence_, position_) * sum;
  for (int32_t token : all)
    if ((left -= weights_[size_t(token)]) < 0) return token;
  return all.front();  // rounding, or logits that are no numbers
}

}  // namespace octet
