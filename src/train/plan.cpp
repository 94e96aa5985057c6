// Planning: runs the code of training on the plan engine. Two steps between evaluations give the memory of every
// arena; the second step, when scales have a history, gives the work.
#include "ops/tune.h"
#include "train/entries.h"
#include "train/trainer.h"
#include "train/weights.h"

namespace octet::BACKEND {
namespace {
Samples no_samples(const RunConfig& c) {  // nothing is ever read
  const int64_t T = c.training.seq_len;
  const Bounds documents = bounds_of(c);
  return {[=](int64_t, int64_t count) { return blank_batch(count, T, documents); },
          [=](int64_t, int64_t count) { return count * T; }};
}
}  // namespace

PlanResult plan_run(const RunConfig& c, int ranks, const Target& target) {
  LoneHost host(ranks);
  Trainer trainer(c, host, {.memory = MemoryPlan::unbounded()}, {.target = target});
  const Samples samples = no_samples(c);
  PlanResult result;
  trainer.evaluate(samples, 1);  // as before the first step, when casts still measure first
  for (int i = 0; i < 2; ++i) {
    trainer.session.device.take_work();
    trainer.step(samples);
    result.work = trainer.session.device.take_work();
  }
  trainer.evaluate(samples, 1);
  result.memory = trainer.session.arenas.peak();
  result.products = take_products(trainer.session.device);
  result.parameters = trainer.session.params.count();
  for (NamedShape& p : names_of(trainer.session.params)) result.shapes.emplace_back(std::move(p.name), p.shape);
  result.precision = *trainer.session.recipe.report;
  return result;
}

}  // namespace octet::BACKEND
