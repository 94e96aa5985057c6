#pragma once
// `octet plan --fastest`: of the settings that change nothing of what a model learns, those by which it trains fastest.
#include "cli/card.h"

namespace octet {

struct Setting {  // one that fits
  RunConfig config;
  double bytes = 0;              // of memory, of each rank
  double tokens_per_second = 0;  // of each rank, predicted
};

// ZeRO stages, micro-batches (of a mixture of experts they change what is learned: only the given one), ranks over
// which experts are spread, and with each the fewest recomputed blocks with which it fits; the fastest first. Empty:
// none fits.
std::vector<Setting> fastest_settings(const RunConfig& config, int64_t ranks, const Card& card);

int show_fastest(const Arguments& arguments, const RunConfig& config, int64_t ranks);

}  // namespace octet
