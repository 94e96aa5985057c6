// Inference on a trained model: loading its weights, losses of given tokens, and the memory plan of both.
#include "ops/tune.h"
#include "train/entries.h"
#include "train/generator.h"
#include "train/weights.h"

namespace octet::BACKEND {

void load_weights(Session& s, const std::string& model) {
  if (!model.empty()) return read_masters(s.stream, s.params, SafetensorsModel(model), hf_layout(s.config.model));
  s.params.draw(s.stream, uint64_t(*s.config.training.seed));
  s.params.publish(s.stream, ParameterStore::Masters::changed);
}

void evaluate_run(const RunConfig& config, Host& host, const Planner& planner, const EvaluateRequest& request) {
  Session s(config, host, planner(config), Purpose::evaluate, options_for(config, host));
  load_weights(s, request.model);
  Batch batch = blank_batch(config.training.micro_batch_size, config.training.seq_len, bounds_of(config));
  const auto losses =
      s.arenas[Memory::weights].alloc(wide(config.precision.param_dtype), {batch.batch * batch.seq_len});
  while (request.next({batch.tokens, batch.targets, batch.begins, batch.ends})) {
    Context c = s.context(Pass::evaluate);
    s.model.evaluate(c, s.upload(batch), losses);
    request.take(to_host(s.stream, losses));
  }
}

PlanResult plan_inference(const RunConfig& config, const Target& target, int64_t prompt) {
  LoneHost host;
  const PlanResult unbounded{.memory = MemoryPlan::unbounded()};
  PlanResult result;
  const auto note = [&](Session& s) {
    result.memory = s.arenas.peak();
    result.products = take_products(s.device);
    result.parameters = s.params.count();
    result.work = s.device.take_work();
  };
  const int64_t B = config.training.micro_batch_size, T = config.training.seq_len;
  if (prompt > 0) {
    Generator g(config, host, unbounded, prompt, {.target = target});
    g.read(std::vector<std::vector<int32_t>>(size_t(B), std::vector<int32_t>(size_t(prompt), 0)));
    if (T > prompt) {  // else there is no room for a step
      g.session.device.take_work();
      g.next(g.new_tokens());  // the work of a step
    }
    note(g.session);
  } else {
    Session s(config, host, unbounded, Purpose::evaluate, {.target = target});
    const Tensor losses = s.arenas[Memory::weights].alloc(wide(config.precision.param_dtype), {B * T});
    Context c = s.context(Pass::evaluate);
    s.model.evaluate(c, s.upload(blank_batch(B, T, bounds_of(config))), losses);
    note(s);
  }
  return result;
}

}  // namespace octet::BACKEND
