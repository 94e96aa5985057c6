#include "data/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"
#include "data/vocabulary_math.h"

namespace octet {
namespace {

int32_t first_of(std::span<const float> logits, float value) {  // 0 where there is none: it is no number
  const auto found = std::find(logits.begin(), logits.end(), value);
  return found == logits.end() ? 0 : int32_t(found - logits.begin());
}

}  // namespace

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
  const int32_t token = options_.temperature == 0 ? first_of(logits, largest_of(logits)) : draw(logits);
  ++position_;
  see(token);
  return token;
}

// Candidates are in an order, from which the token is taken whose weight is the first to bring the sum of weights
// beyond u times the sum of all. Without top-k and top-p it is the order of the vocabulary; else that by descending
// logit, of equal ones the lower index first, cut behind the k-th (top-k) and behind the one that brings the sum of
// probabilities to p (top-p, Holtzman et al. 2019, arXiv:1904.09751), of those top-k left.
int32_t Sampler::draw(std::span<const float> logits) {
  const double u = uniform(options_.seed, sequence_, position_);
  if (options_.top_k > 0 && options_.top_k < int64_t(logits.size())) return draw_of_k(logits, u);
  return options_.top_p < 1 ? draw_of_p(logits, u) : draw_of_all(logits, u);
}

int32_t Sampler::draw_of_all(std::span<const float> logits, double u) {
  double left = u * weigh(logits);
  size_t block = 0;
  while (block + 1 < sums_.size() && left >= sums_[block]) left -= sums_[block++];
  for (size_t i = block * kSumBlock; i < std::min(logits.size(), (block + 1) * kSumBlock); ++i)
    if ((left -= weights_[i]) < 0) return int32_t(i);
  return first_of(logits, largest_of(logits));  // rounding, or logits that are no numbers
}

int32_t Sampler::draw_of_k(std::span<const float> logits, double u) {
  collect_likeliest(logits, size_t(options_.top_k));
  const double largest = logits[size_t(candidates_[0])];
  weights_.clear();
  double sum = 0;
  for (const int32_t token : candidates_)
    sum += weights_.emplace_back(std::exp((double(logits[size_t(token)]) - largest) / options_.temperature));
  size_t kept = candidates_.size();
  if (options_.top_p < 1) {
    double part = weights_[0];
    for (kept = 1; kept < candidates_.size() && part < options_.top_p * sum; ++kept) part += weights_[kept];
    sum = part;
  }
  double left = u * sum;
  for (size_t i = 0; i < kept; ++i)
    if ((left -= weights_[i]) < 0) return candidates_[i];
  return candidates_[0];
}

// Only the buckets in which the kept ones end, and in which the drawn one lies, are sorted.
int32_t Sampler::draw_of_p(std::span<const float> logits, double u) {
  const double sum = weigh(logits), limit = options_.top_p * sum;
  sort_into_buckets(logits);
  mass_.assign(kBuckets, 0);
  for (size_t i = 0; i < logits.size(); ++i) mass_[bucket_[i]] += weights_[i];
  const auto find = [&](double mass, double& before) {  // the bucket in which it is reached
    int32_t bucket = 0;
    for (before = 0; bucket + 1 < kBuckets && before + mass_[size_t(bucket)] < mass; ++bucket)
      before += mass_[size_t(bucket)];
    return bucket;
  };
  double before = 0;
  int32_t bucket = find(limit, before);
  collect_bucket(logits, bucket);
  double kept = before;
  for (size_t i = 0; i < candidates_.size() && (i == 0 || kept < limit); ++i) kept += weights_[size_t(candidates_[i])];
  const double left = u * kept;
  if (left < before) {
    bucket = find(left, before);
    collect_bucket(logits, bucket);
  }
  for (const int32_t token : candidates_)
    if ((before += weights_[size_t(token)]) > left) return token;
  return candidates_.empty() ? first_of(logits, largest_of(logits)) : candidates_.back();
}

double Sampler::weigh(std::span<const float> logits) {
  weights_.resize(logits.size());
  sums_.resize((logits.size() + kSumBlock - 1) / kSumBlock);
  exponentials(logits, largest_of(logits), options_.temperature, weights_, sums_);
  return std::accumulate(sums_.begin(), sums_.end(), 0.);
}

void Sampler::sort_into_buckets(std::span<const float> logits) {
  bucket_.resize(logits.size());
  const float largest = largest_of(logits);
  // Tokens at most exp(-32) times as likely as the most likely one may share a bucket.
  const double range = std::min(double(largest) - double(smallest_of(logits)), 32 * options_.temperature);
  bucket_numbers(logits, largest, float(std::min((kBuckets - 1) / range, 1e30)), bucket_);
}

void Sampler::collect_bucket(std::span<const float> logits, int32_t bucket) {
  candidates_.clear();
  for (size_t i = 0; i < bucket_.size(); ++i)
    if (bucket_[i] == bucket) candidates_.push_back(int32_t(i));
  sort_candidates(logits, candidates_.size());
}

// A logit below the k-th largest of the blocks' maxima is not among the k largest: few blocks have any above it.
void Sampler::collect_likeliest(std::span<const float> logits, size_t k) {
  candidates_.clear();
  maxima_.resize((logits.size() + kMaximumBlock - 1) / kMaximumBlock);
  block_maxima(logits, maxima_);
  if (k < maxima_.size()) {
    sorted_ = maxima_;
    std::partial_sort(sorted_.begin(), sorted_.begin() + ptrdiff_t(k), sorted_.end(), std::greater());
    const float least = sorted_[k - 1];
    for (size_t block = 0; block < maxima_.size(); ++block) {
      if (maxima_[block] < least) continue;
      for (size_t i = block * kMaximumBlock; i < std::min(logits.size(), (block + 1) * kMaximumBlock); ++i)
        if (logits[i] >= least) candidates_.push_back(int32_t(i));
    }
  }
  if (candidates_.size() < k) {  // many are wanted, or the logits are no numbers
    candidates_.resize(logits.size());
    std::iota(candidates_.begin(), candidates_.end(), 0);
  }
  sort_candidates(logits, k);
}

// By descending logit; `most` are left. By heaps, which tolerate that NaN logits have no order.
void Sampler::sort_candidates(std::span<const float> logits, size_t most) {
  const auto end = candidates_.begin() + ptrdiff_t(most);
  std::partial_sort(candidates_.begin(), end, candidates_.end(), [&](int32_t a, int32_t b) {
    const float x = logits[size_t(a)], y = logits[size_t(b)];
    return x > y || (x == y && a < b);
  });
  candidates_.erase(end, candidates_.end());
}

}  // namespace octet
