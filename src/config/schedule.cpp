#include "config/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace octet {

int64_t warmup_steps(const ScheduleConfig& schedule, int64_t tokens_per_step) {
  if (schedule.warmup_steps > 0 || schedule.warmup_tokens == 0 || tokens_per_step <= 0) return schedule.warmup_steps;
  return (schedule.warmup_tokens - 1) / tokens_per_step + 1;
}

int64_t decay_steps(const ScheduleConfig& schedule, int64_t total_steps) {
  if (schedule.decay_steps > 0) return schedule.decay_steps;
  const double steps = schedule.decay_fraction * double(total_steps);
  return int64_t(std::ceil(steps * (1 - 1e-15)));  // 0.07 of 100 comes out as 7.000000000000001
}

double learning_rate(const ScheduleConfig& schedule, int64_t step, int64_t total_steps, int64_t tokens_per_step) {
  const double peak = schedule.lr, floor = schedule.min_lr;
  const int64_t warmup = warmup_steps(schedule, tokens_per_step), last = total_steps - 1;
  if (step < warmup) return peak * (double(step + 1) / double(warmup));  // exactly the peak at the end
  if (schedule.kind == ScheduleKind::constant) return peak;

  // The decay runs from `first`, which still has the peak, to `last`, which has the floor.
  const bool wsd = schedule.kind == ScheduleKind::wsd;
  const int64_t first = wsd ? std::max(warmup, last - decay_steps(schedule, total_steps)) : warmup;
  if (step >= last && last > 0) return floor;
  if (step <= first) return peak;
  const double done = double(step - first) / double(last - first);  // in (0, 1)
  const double left = schedule.kind == ScheduleKind::cosine ? (1 + std::cos(std::numbers::pi * done)) / 2 : 1 - done;
  return floor + (peak - floor) * left;
}

}  // namespace octet
