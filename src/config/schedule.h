#pragma once
// The learning rate of each step: linear warm-up to the peak, then cosine, linear or constant-then-linear (wsd) decay
// to min_lr, or constant. The step is a 0-based count; the last warm-up step has exactly the peak, the last step of all
// exactly min_lr (unless constant).
#include <cstdint>

#include "config/training.h"

namespace octet {

int64_t warmup_steps(const ScheduleConfig& schedule, int64_t tokens_per_step);
int64_t decay_steps(const ScheduleConfig& schedule, int64_t total_steps);  // of wsd
double learning_rate(const ScheduleConfig& schedule, int64_t step, int64_t total_steps, int64_t tokens_per_step);

}  // namespace octet
