// How long a run is, and where a step stands in its schedule.
#include <algorithm>

#include "config/config.h"
#include "config/schedule.h"

namespace octet {

static bool counts_tokens(const RunConfig& config) { return config.training.steps == 0 && config.training.tokens > 0; }

int64_t tokens_per_step(const RunConfig& config) { return config.training.global_batch_size * config.training.seq_len; }

int64_t total_steps(const RunConfig& config) {
  const TrainingConfig& t = config.training;
  if (t.steps > 0 || t.tokens == 0) return t.steps;
  return (t.tokens - 1) / tokens_per_step(config) + 1;
}

int64_t total_steps(const RunConfig& config, const Done& done) {
  if (!counts_tokens(config)) return total_steps(config);
  const int64_t left = config.training.tokens - done.tokens;
  return done.step + (left > 0 ? (left - 1) / tokens_per_step(config) + 1 : 0);
}

// The progress of a run that is measured in tokens is its share of tokens, whatever the batch sizes; but a warm-up that
// is given in steps is over after so many steps.
double learning_rate(const RunConfig& config, const Done& done) {
  const int64_t per_step = tokens_per_step(config), total = total_steps(config);
  int64_t step = done.step;
  if (counts_tokens(config)) {
    const int64_t warmup = config.schedule.warmup_steps, left = total_steps(config, done) - done.step;
    step = done.step < warmup ? done.step : std::max(warmup, total - left);
  }
  return learning_rate(config.schedule, step, total, per_step);
}

int64_t shard_degree(const RunConfig& config, int64_t ranks) {
  if (config.parallel.zero_stage == 0) return 1;  // nothing is sharded: all ranks are replicas
  return config.parallel.shard_degree > 0 ? *config.parallel.shard_degree : ranks;
}

int64_t micro_steps(const RunConfig& config, int64_t ranks) {
  return config.training.global_batch_size / (ranks * config.training.micro_batch_size);
}

}  // namespace octet
