#include "data/vocabulary_math.h"

#include <algorithm>
#include <cmath>

namespace octet {

float largest_of(std::span<const float> x) {
  float largest = x[0];
  for (const float one : x) largest = std::max(largest, one);
  return largest;
}

float smallest_of(std::span<const float> x) {
  float smallest = x[0];
  for (const float one : x) smallest = std::min(smallest, one);
  return smallest;
}

void block_maxima(std::span<const float> x, std::span<float> maxima) {
  for (size_t block = 0; block < maxima.size(); ++block) {
    const size_t first = block * kMaximumBlock;
    maxima[block] = largest_of(x.subspan(first, std::min(kMaximumBlock, x.size() - first)));
  }
}

void exponentials(std::span<const float> x, float largest, double temperature, std::span<double> w,
                  std::span<double> sums) {
  for (size_t first = 0; first < x.size(); first += kSumBlock) {
    const size_t end = std::min(x.size(), first + kSumBlock);
    double sum = 0;
    for (size_t i = first; i < end; ++i) sum += w[i] = std::exp((double(x[i]) - double(largest)) / temperature);
    sums[first / kSumBlock] = sum;
  }
}

void bucket_numbers(std::span<const float> x, float largest, float fineness, std::span<uint16_t> buckets) {
  static_assert((kBuckets & (kBuckets - 1)) == 0);
  for (size_t i = 0; i < x.size(); ++i) {
    const float number = std::min((largest - x[i]) * fineness, float(kBuckets - 1));
    buckets[i] = uint16_t(int32_t(number) & (kBuckets - 1));
  }
}

}  // namespace octet
