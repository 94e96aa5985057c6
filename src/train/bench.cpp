// octet bench: steps of training on random tokens, timed by events on the device after a warm-up.
#include "base/log.h"
#include "train/entries.h"
#include "train/trainer.h"

namespace octet::BACKEND {

BenchResult bench_run(const RunConfig& config, Host& host, const Planner& planner, const BenchRequest& request) {
  const PlanResult plan = planner(config);
  Device::Options options = options_for(config, host);
  options.profile = request.profile;
  options.time_waits = true;
  BenchResult result{.tokens_per_step = tokens_per_step(config) / host.size(), .planned_bytes = plan.memory.total()};
  Trainer trainer(config, host, plan, options);
  Device& device = trainer.session.device;
  result.device = device.name();
  const Samples samples = random_samples(config);
  for (int64_t i = 0; i < request.warmup + request.steps; ++i) {
    if (i == request.warmup) device.take_work();
    trainer.step(samples);
    const StepReport r = trainer.report(i + 1);
    result.loss = r.loss;
    result.norm = double(r.state.norm);
    log_debug("step ", i + 1, " loss ", r.loss, " ", r.seconds, " s");
    if (i >= request.warmup) result.step_seconds.push_back(r.seconds);
  }
  result.times = device.take_work();
  result.peak_bytes = device.used_bytes();
  result.arena_bytes = trainer.session.arenas.peak().total();
  return result;
}

}  // namespace octet::BACKEND
