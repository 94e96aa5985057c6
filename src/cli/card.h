#pragma once
// The card that a plan is made for, and what is known of it.
#include "cli/command.h"
#include "config/config.h"
#include "config/predict.h"

namespace octet {

struct Card {
  const char* name;
  Target target;
  double bytes;       // of memory, as CUDA reports them, less what a run cannot have; 0: the machine's
  double bandwidth;   // of memory, TB/s; 0: its speed is not predicted
  int64_t local = 1;  // ranks of a machine
};
constexpr double kMeasuredBandwidth = 4.8;  // TB/s, of the card whose rates were measured

Card card_of(const Arguments& arguments, const RunConfig& config, int64_t ranks);  // --target and --local-ranks
Prediction predict(const WorkLog& work, const RunConfig& config, int64_t ranks, const Card& card);

}  // namespace octet
