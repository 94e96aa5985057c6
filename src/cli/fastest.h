#pragma once
// `octet plan --fastest`: of the settings that, but for rounding, change nothing of what a model learns, those by which
// it trains fastest.
#include "cli/card.h"

namespace octet {

struct Setting {
  RunConfig config;
  int64_t bytes = 0;             // of memory, of each rank
  double tokens_per_second = 0;  // of each rank, predicted; 0: not known
};

// Those that fit, the fastest first: ZeRO stages, sharding groups of whole machines, micro-batches, ranks over which
// experts are spread, and with each the fewest recomputed blocks with which it fits. What experts are balanced by (the
// micro-batch), and ranks share FP8 scales by (their groups), stays as it is given.
std::vector<Setting> fastest_settings(const RunConfig& config, int64_t ranks, const Card& card);

int show_fastest(const Arguments& arguments, const RunConfig& config, int64_t ranks);

}  // namespace octet
