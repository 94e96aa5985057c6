#pragma once
// Loops over the logits of a whole vocabulary, compiled so that they are vectorised (-O3 -ffast-math: the exponential
// is then libmvec's, within 4 units of the last place). NaN logits give NaN or wrong
// results.
#include <cstdint>
#include <span>

namespace octet {

float largest_of(std::span<const float> x);
float smallest_of(std::span<const float> x);

inline constexpr size_t kMaximumBlock = 64;
void block_maxima(std::span<const float> x, std::span<float> maxima);  // of each kMaximumBlock

// w[i] = exp((x[i] - largest) / temperature); sums: of each kSumBlock of them.
inline constexpr size_t kSumBlock = 256;
void exponentials(std::span<const float> x, float largest, double temperature, std::span<double> w,
                  std::span<double> sums);

// (largest - x) * fineness, at most kBuckets - 1: monotonic in x, and a valid bucket whatever x is.
inline constexpr int32_t kBuckets = 4096;
void bucket_numbers(std::span<const float> x, float largest, float fineness, std::span<uint16_t> buckets);

}  // namespace octet
