#include "train/trainer.h"

#include <cstddef>

#include "base/rng.h"
#include "ops/workspace.h"

namespace octet::BACKEND {

struct Trainer::InFlight {
  InFlight(Device& d, Tensor expert_load)
      : begin(d),
        end(d),
        state(pinned_array<StepState>(1)),
        load(pinned_array<double>(expert_load ? expert_load.numel() : 0)) {}
  Event begin, end;
  PinnedArray<StepState> state;
  PinnedArray<double> load;  // (L,E), where there are experts
  double valid_targets = 1, lr = 0;
  int64_t step = -1, tokens = 0;
  HealthReport health;
};

Trainer::Trainer(const RunConfig& config, Host& host, const PlanResult& plan, const Device::Options& device)
    : session(config, host, plan, Purpose::train, device) {
  Arena& persistent = session.arenas[Memory::weights];
  state_ = persistent.alloc(DType::e4m3, {int64_t(sizeof(StepState))});  // as bytes
  partial_ = persistent.alloc(DType::f64, {partial_sums(session.device.target())});
  for (auto& f : flights_) f = std::make_unique<InFlight>(session.device, session.model.expert_load());
  restore({}, {.loss_scale = first_loss_scale(config.precision)});
}
Trainer::~Trainer() = default;

Tensor Trainer::field(size_t offset, DType t, int64_t count) const {
  return Tensor{static_cast<char*>(state_.data) + offset, t, {count}};
}

// Gradients of the micro-batches; one loss and norm for all ranks; update; FP8 scales. Nothing here waits for the
// device but: uploads, once the host is four micro-batches ahead; FP8 scales, until all have a history, and their
// health on request; and experts whose offsets the host needs (parallel.expert_parallel, fp8.moe_per_expert_scales, or
// a card that is no Hopper).
void Trainer::step(const Samples& samples) {
  Session& s = session;
  const RunConfig& config = s.config;
  const int64_t G = config.training.global_batch_size, M = config.training.micro_batch_size;
  const int64_t R = s.host.size(), micro_steps = octet::micro_steps(config, R);
  const double valid = double(std::max<int64_t>(1, samples.valid_targets(done_.samples, G)));
  const Tensor loss = field(offsetof(StepState, loss), DType::f64, 1),
               squares = field(offsetof(StepState, squares), DType::f64, 1);
  const LossScaling scaling = loss_scaling(config.precision);
  const Tensor scale = scaling == LossScaling::none ? Tensor{} : field(offsetof(StepState, loss_scale), DType::f32, 1);
  const LossFactor factor{1 / valid, scale ? scale.ptr<float>() : nullptr};
  const int64_t step = done_.step;
  InFlight& flight = *flights_[size_t(step % 2)];
  flight.begin.record(s.stream);
  flight.health = {};
  const bool examines = config.log.fp8_every && (step + 1) % config.log.fp8_every == 0;

  s.params.zero_gradients(s.stream);
  fill_byte(s.stream, state_.data, 0, offsetof(StepState, updates));  // the counters stay, and the loss scale
  const Tensor load = s.model.expert_load();
  if (load) fill_zero(s.stream, load);
  for (int64_t m = 0; m < micro_steps; ++m) {
    const bool last = m + 1 == micro_steps;
    Context c = s.context(Pass::train);
    c.batch = last ? ParameterStore::Batch::last : ParameterStore::Batch::more_follow;
    if (m == 0 && examines) s.scaling.start_counting(s.stream);
    c.routers.losses = field(offsetof(StepState, aux), DType::f64, 2);
    c.routers.share = 1. / double(micro_steps);
    // Ranks compute neighbouring micro-batches at the same time, so that router balancing and amax see the same
    // sequences together.
    const int64_t place = m * R + s.host.rank();
    c.routers.seed = random_bits(uint64_t(*config.training.seed), uint64_t(step), uint64_t(place));
    s.model.train(c, s.upload(samples.batch(done_.samples + place * M, M)), loss, factor);
    if (m == 0 && examines) examine(s.scaling, flight.health);  // before the update, when scales are oldest
    if (last || config.fp8.update_every == UpdateEvery::microbatch) s.update_scales(state_);
  }

  s.params.sum_squares(s.stream, squares, partial_);
  s.world->all_reduce(s.stream, loss, Reduce::sum);
  if (config.model.router_aux_loss_per_rank)  // else these are of all ranks already
    for (const Tensor& part : {field(offsetof(StepState, aux), DType::f64, 2), load})
      s.world->all_reduce(s.stream, part, Reduce::sum);
  if (config.fp8.enabled && s.amax_group() != s.world.get())  // ranks that do not share maxima must still skip together
    s.world->all_reduce(s.stream, field(offsetof(StepState, nonfinite_casts), DType::u32, 1), Reduce::max);
  finish_gradients(s.stream, state_, config.optimizer.clip,
                   scaling == LossScaling::dynamic ? int64_t(config.precision.loss_scale_growth_every) : 0);

  flight.lr = learning_rate(config, done_);
  update(flight.lr);
  if (examines) s.params.weight_scales().start_counting(s.stream);
  s.params.publish(s.stream, ParameterStore::Masters::stepped);
  if (examines) examine(s.params.weight_scales(), flight.health);

  done_ = {step + 1, done_.samples + G, done_.tokens + tokens_per_step(config)};
  flight.step = done_.step;
  if (examines) flight.health.step = done_.step;
  flight.tokens = done_.tokens;
  flight.valid_targets = valid;
  copy_to_host(s.stream, flight.state.get(), state_.data, sizeof(StepState));
  if (load) copy_to_host(s.stream, flight.load.get(), load.data, load.bytes());
  flight.end.record(s.stream);
}

void Trainer::examine(DelayedScaling& scales, HealthReport& health) {
  for (const CastHealth& cast : scales.examine(session.stream)) health.casts.push_back(cast);
  health.names.insert(health.names.end(), scales.names().begin(), scales.names().end());
  scales.stop_counting();
}

void Trainer::update(double lr) {
  const OptimizerConfig& o = session.config.optimizer;
  std::vector<AdamwPiece> pieces;
  session.params.for_each_group([&](const std::string& name, const Param& p, const ParameterStore::Local& l) {
    if (l.master.numel() == 0) return;  // other ranks hold all of it
    uint32_t* amax = p.slot >= 0 ? session.params.weight_amax(p.slot) : nullptr;
    pieces.push_back({.master = l.master,
                      .m = l.m,
                      .v = l.v,
                      .grad = l.grad,
                      .weights = l.weights,
                      .amax = amax,
                      .decay = p.shape.rank >= 2 ? double(o.weight_decay) : 0.,
                      .stream = hash(name),
                      .first = l.first});
  });
  const AdamwSettings settings{.lr = lr,
                               .beta1 = o.beta1,
                               .beta2 = o.beta2,
                               .eps = o.eps,
                               .seed = uint64_t(*session.config.training.seed),
                               .step = uint64_t(done_.step)};
  adamw(session.stream, pieces, settings, state_);
}

StepReport Trainer::report(int64_t step) {
  InFlight& f = *flights_[size_t((step - 1) % 2)];
  CHECK(f.step == step, "step ", step, " is reported too late");
  f.end.synchronize();
  ++session.pulse;
  const Tensor load = session.model.expert_load();
  return {.step = step,
          .tokens = f.tokens,
          .loss = f.state[0].loss / f.valid_targets,
          .lr = f.lr,
          .seconds = f.end.seconds_since(f.begin),
          .state = f.state[0],
          .health = f.health,
          .expert_load = {f.load.get(), f.load.get() + (load ? load.numel() : 0)}};
}

double Trainer::evaluate(const Samples& samples, int64_t sequences) { return session.loss(samples, 0, sequences); }

StepState Trainer::state() {
  StepState on_host;
  copy_to_host(session.stream, &on_host, state_.data, sizeof on_host);
  session.stream.synchronize();
  return on_host;
}

void Trainer::restore(const Done& done, const StepState& state) {
  done_ = done;
  copy_to_device(session.stream, state_.data, &state, sizeof state);
  session.stream.synchronize();
}

}  // namespace octet::BACKEND
