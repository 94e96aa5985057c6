#include "config/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace octet {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

double llama3(const RopeScaling& s, double w) {
  const double rotations = double(s.original_max_positions) * w / kTwoPi;  // within the original range
  if (rotations > s.high_freq_factor) return w;
  if (rotations < s.low_freq_factor) return w / s.factor;
  const double smooth = (rotations - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * w / s.factor + smooth * w;
}

// The dimension (a fraction, of R/2) that makes this many rotations within the original range.
double dimension_of(const ModelConfig& m, double rotations) {
  const double R = double(m.rotary_dims()), range = double(m.rope_scaling.original_max_positions);
  return R * std::log(range / (rotations * kTwoPi)) / (2 * std::log(m.rope_theta));
}

void yarn(const ModelConfig& m, std::vector<double>& w) {
  const RopeScaling& s = m.rope_scaling;
  double low = dimension_of(m, s.beta_fast), high = dimension_of(m, s.beta_slow);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.), high = std::min(high, double(m.rotary_dims() - 1));
  if (low == high) high += 0.001;  // as transformers
  for (size_t i = 0; i < w.size(); ++i) {
    const double stretched = std::clamp((double(i) - low) / (high - low), 0., 1.);
    w[i] = stretched * w[i] / s.factor + (1 - stretched) * w[i];
  }
}

}  // namespace

std::vector<double> rotary_frequencies(const ModelConfig& m) {
  const int64_t R = m.rotary_dims();
  std::vector<double> w;
  for (int64_t i = 0; i < R / 2; ++i) w.push_back(std::pow(m.rope_theta, -2. * double(i) / double(R)));
  const RopeScaling& s = m.rope_scaling;
  if (s.kind == RopeKind::yarn) yarn(m, w);
  for (double& one : w) {
    if (s.kind == RopeKind::linear) one /= s.factor;
    if (s.kind == RopeKind::llama3) one = llama3(s, one);
  }
  return w;
}

double rotary_scale(const ModelConfig& m) {
  const RopeScaling& s = m.rope_scaling;
  if (s.kind != RopeKind::yarn) return 1;
  return s.attention_factor > 0 ? s.attention_factor : s.factor > 1 ? 0.1 * std::log(s.factor) + 1 : 1;
}

}  // namespace octet
