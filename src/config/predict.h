#pragma once
// How long a step will take: the work that the plan engine counts, at rates that were measured.
#include "config/plan.h"

namespace octet {

// What a rank works on, relative to the H200 SXM, whose rates were measured.
struct PredictedCard {
  double memory = 0;          // bandwidth of its memory; 0: nothing is known of this card
  bool one_machine = true;    // all ranks share a machine, so that all-reduces stay in it
  bool groups_inside = true;  // sharding groups lie within machines: gathers and scatters stay in them
};

struct Prediction {
  std::array<double, size_t(Kernel::count)> seconds{};  // of a step, by class
  double step = 0;                                      // seconds; 0: not predicted, as rates are not known
  bool network = false;  // there is traffic between machines, which is not counted: it was not measured
};

// seconds of a class = flops / rate + bytes / rate + 2 us a call, for activations in bf16. head_size: of attention.
// The rates reproduce the measured speeds of scripts/bench/RESULTS.md within 6 % (tests/cli/test_predict.cpp).
Prediction predict(const WorkLog& work, int64_t head_size, const PredictedCard& card);

}  // namespace octet
