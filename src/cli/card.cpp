#include "cli/card.h"

#include <algorithm>

#include "base/json.h"
#include "cli/ranks.h"

namespace octet {
namespace {

constexpr double kGiB = 1024. * 1024. * 1024.;
constexpr Card kCards[] = {
    {"cpu", {}, 0, 0},
    {"a100", {.cuda = true, .compute_capability = 80, .multiprocessors = 108}, 79.2 * kGiB, 0},
    {"h100", {.cuda = true, .compute_capability = 90, .multiprocessors = 132}, 79.1 * kGiB, 3.35},
    {"h200", {.cuda = true, .compute_capability = 90, .multiprocessors = 132}, 139.7 * kGiB, kMeasuredBandwidth},
};

// Ranks per machine: --local-ranks, else all that fit on the usual one, as many on each.
int64_t local_ranks(const Arguments& arguments, int64_t ranks, const Card& card) {
  constexpr int64_t kUsual = 8;
  if (arguments.has("local-ranks")) {
    const int64_t local = arguments.integer("local-ranks", 1);
    if (ranks % local) arguments.refuse(concat("--local-ranks ", local, " does not divide the ", ranks, " ranks"));
    return local;
  }
  if (!card.target.cuda) return ranks;
  int64_t local = std::min(ranks, kUsual);
  while (ranks % local) --local;
  return local;
}

}  // namespace

Card card_of(const Arguments& arguments, const RunConfig& config, int64_t ranks) {
  std::string name = arguments.text("target");
  if (name.empty()) name = config.device == DeviceKind::cpu ? "cpu" : "h200";
  std::vector<std::string> names;
  for (Card card : kCards) {
    names.push_back(card.name);
    if (name != card.name) continue;
    card.target.deterministic = !card.target.cuda || config.training.deterministic;
    if (card.target.compute_capability >= 90) card.target.attention = config.model.attention;  // as if built with cuDNN
    if (card.target.cuda) card.bytes -= beside_arenas(ranks);
    card.local = local_ranks(arguments, ranks, card);
    if (const int64_t spread = config.parallel.expert_parallel; card.local % spread)
      bad_input("parallel.expert_parallel (", spread, ") does not divide the ", card.local,
                " ranks of a machine, on which the experts of a layer must be together");
    require_types(card.target, config);
    if (config.fp8.enabled && !card.target.fp8())
      bad_input("fp8.enabled: ", name, " has compute capability ", card.target.compute_capability / 10, ".",
                card.target.compute_capability % 10, "; FP8 needs 8.9 or more. Set fp8.enabled=false");
    return card;
  }
  arguments.refuse(concat("--target ", name, ": expected cpu, a100, h100 or h200", did_you_mean(name, names)));
}

Prediction predict(const WorkLog& work, const RunConfig& config, int64_t ranks, const Card& card) {
  return predict(work, config.model.head_dim,
                 {.memory = card.bandwidth / kMeasuredBandwidth,
                  .ranks = ranks,
                  .local = card.local,
                  .degree = shard_degree(config, ranks),
                  .spread = config.parallel.expert_parallel});
}

}  // namespace octet
