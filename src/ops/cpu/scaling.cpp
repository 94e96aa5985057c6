// Delayed scaling: delayed_scale() (formulas.h) over all slots, and the scale of a cast without history.
#include <algorithm>

#include "ops/formulas.h"
#include "ops/ops.h"

namespace octet::BACKEND {

void update_scales(Stream&, const ScaleState& s, Tensor state) {
  const int64_t S = s.amax.numel(), L = s.history.rows();
  CHECK(s.scale.numel() == 4 * S && s.history.cols() == S && s.largest.numel() == S && s.nonfinite.numel() == S,
        "scale ", s.scale.shape, ", history ", s.history.shape, " for ", S, " slots");
  uint32_t *amax = s.amax.ptr<uint32_t>(), *nonfinite = s.nonfinite.ptr<uint32_t>();
  float *scale = s.scale.ptr<float>(), *history = s.history.ptr<float>();
  const float* largest = s.largest.ptr<float>();
  uint32_t found = 0;
  for (int64_t i = 0; i < S; ++i) {
    const float last = std::bit_cast<float>(amax[i]);
    const bool bad = !(last <= kLargestFloat);
    nonfinite[i] += bad;
    found += bad;
    const bool rescale = s.rescale || !used_scale(scale, history, L, S, i);
    const ScaleRule rule{largest[i], L, S, s.most_recent, s.te_compat, s.power_of_2, rescale};
    scale[4 * i] = delayed_scale(rule, scale[4 * i], last, history + i);
    amax[i] = 0;
  }
  if (state) static_cast<StepState*>(state.data)->nonfinite_casts += found;
}

void inherit_scales(Stream&, const ScaleState& s, Tensor groups) {
  const int64_t S = s.amax.numel(), L = s.history.rows();
  float* scale = s.scale.ptr<float>();
  const float* history = s.history.ptr<float>();
  for (int64_t g = 0; g < groups.rows(); ++g) {
    const int64_t first = groups.ptr<int32_t>()[2 * g], last = first + groups.ptr<int32_t>()[2 * g + 1];
    float smallest = 0;  // none
    for (int64_t i = first; i < last; ++i)
      if (used_scale(scale, history, L, S, i))
        smallest = smallest > 0 ? std::min(smallest, scale[4 * i]) : scale[4 * i];
    for (int64_t i = first; i < last; ++i)
      if (smallest > 0 && !used_scale(scale, history, L, S, i)) scale[4 * i] = smallest;
  }
}

void current_scale(Stream&, float* scale, const uint32_t* amax, float largest, bool power_of_2) {
  const float a = std::bit_cast<float>(*amax);
  *scale = a > 0 && a <= kLargestFloat ? scale_of(largest, a, power_of_2) : 1.f;
}

}  // namespace octet::BACKEND
