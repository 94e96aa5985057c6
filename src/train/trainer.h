#pragma once
// The training step and its state: parameters, moments, scales, counters.
#include "config/schedule.h"
#include "train/session.h"

namespace octet::BACKEND {

struct StepReport {    // of one finished step
  int64_t step = 0;    // counted from 1
  int64_t tokens = 0;  // of all ranks until its end
  double loss = 0, lr = 0, seconds = 0;
  StepState state;
  HealthReport health;  // of FP8, where log.fp8_every asks for it (then health.step is step); of this rank
  std::vector<double> expert_load{};  // (L,E): tokens of all ranks that chose each expert; empty without experts
};

class Trainer {
 public:
  Trainer(const RunConfig&, Host&, const PlanResult&, const Device::Options&);
  ~Trainer();
  void step(const Samples&);        // one optimizer step; returns when it is queued, not when it is done
  StepReport report(int64_t step);  // of one of the last two steps; waits for it
  double evaluate(const Samples&, int64_t sequences);

  const Done& done() const { return done_; }
  int64_t steps_done() const { return done_.step; }
  void restore(const Done&, const StepState&);  // counters of a checkpoint
  StepState state();                            // waits
  Session session;

 private:
  struct InFlight;  // host side of a step: its events, and copies of its state and expert load
  void update(double lr);
  void examine(DelayedScaling&, HealthReport&);
  Tensor field(size_t offset, DType, int64_t count) const;  // of the state on the device

  Done done_;
  Tensor state_{};    // StepState
  Tensor partial_{};  // of sum_of_squares
  std::array<std::unique_ptr<InFlight>, 2> flights_;
};

}  // namespace octet::BACKEND
