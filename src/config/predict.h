#pragma once
// How long a step will take: the work that the plan engine counts, at rates that were fitted to measured runs.
#include "config/plan.h"

namespace octet {

// A card beside the H200 SXM, whose rates are known, and its place in a job.
struct PredictedCard {
  double memory = 0;               // bandwidth of its memory, of the H200's; 0: nothing is known of this card
  int64_t ranks = 1, local = 1;    // of the job, of a machine
  int64_t degree = 1, spread = 1;  // of a sharding group (config.h, shard_degree); ranks over which experts are spread
};

struct Prediction {
  std::array<double, size_t(Kernel::count)> seconds{};  // of a step, by class
  double step = 0;                                      // seconds; 0: not predicted, as rates are not known
  bool network = false;  // there is traffic between machines: at kNetwork, which was not measured
};
constexpr double kNetwork = 50e9;  // byte/s of a card between machines, as P5's EFA is specified

// seconds of a class = flops / rate + bytes / rate + 2 us a call, for activations in bf16. head_size: of attention.
// The rates give 22 measured speeds of scripts/bench/RESULTS.md, to which they are fitted, within 6 %
// (test_predict.cpp).
Prediction predict(const WorkLog& work, int64_t head_size, const PredictedCard& card);

}  // namespace octet
