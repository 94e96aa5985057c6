#pragma once
// Counter-based random numbers: a value depends on (seed, stream, index) alone, so that any rank, thread or resumed run
// can draw any part of a sequence and gets the same numbers. constexpr: also for device code.
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace octet {

constexpr uint64_t mix(uint64_t z) {  // the finaliser of splitmix64, Steele et al. 2014
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}
constexpr uint64_t hash(std::string_view s, uint64_t h = 0xcbf29ce484222325) {  // FNV-1a
  for (char c : s) h = (h ^ uint8_t(c)) * 0x100000001b3;
  return h;
}
constexpr uint64_t random_key(uint64_t seed, uint64_t stream) {  // common to all numbers of a stream
  return mix(mix(seed + 0x9e3779b97f4a7c15) + stream);
}
constexpr uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
  return mix(random_key(seed, stream) + index);
}
constexpr double uniform(uint64_t seed, uint64_t stream, uint64_t index) {  // [0, 1)
  return double(random_bits(seed, stream, index) >> 11) * 0x1p-53;
}
constexpr double normal(uint64_t seed, uint64_t stream, uint64_t index) {  // Box and Muller
  const uint64_t a = random_bits(seed, stream, index), b = mix(a + 0x9e3779b97f4a7c15);
  const double u = double((a >> 11) + 1) * 0x1p-53, v = double(b >> 11) * 0x1p-53;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

}  // namespace octet
