#include "cli/fastest.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "base/progress.h"
#include "cli/ranks.h"
#include "cli/report.h"

namespace octet {
namespace {

constexpr size_t kShown = 8;

// The plan of a config whose steps have many micro-batches: each after the second adds the same work.
PlanResult plan_shortly(const RunConfig& c, int64_t ranks, const Planner& planner) {
  const int64_t micro_batches = micro_steps(c, ranks);
  if (micro_batches <= 3) return planner(c);
  const auto with = [&](int64_t n) {
    RunConfig few = c;
    few.training.global_batch_size.set(n * ranks * c.training.micro_batch_size);
    return planner(few);
  };
  const PlanResult two = with(2);
  PlanResult plan = with(3);
  const double more = double(micro_batches - 3);
  for (size_t k = 0; k < plan.work.size(); ++k) {
    const Work& before = two.work[k];
    Work& w = plan.work[k];
    w.flops += more * (w.flops - before.flops);
    w.bytes += more * (w.bytes - before.bytes);
    w.calls += (micro_batches - 3) * (w.calls - before.calls);
  }
  return plan;
}

Setting planned(RunConfig c, int64_t ranks, const Card& card) {
  const PlanResult plan = plan_shortly(c, ranks, planner_for(card.target, int(ranks)));
  const double seconds = predict(plan.work, c, ranks, card).step;
  const double tokens = double(tokens_per_step(c)) / double(ranks);
  return {std::move(c), int64_t(plan.memory.total()), seconds > 0 ? tokens / seconds : 0};
}

bool fits(const Setting& s, const Card& card) { return double(s.bytes) < card.bytes; }

// With the fewest recomputed blocks with which it fits: more of them take less memory and more time. Nothing: none do.
std::optional<Setting> with_fewest_recomputed(const RunConfig& config, int64_t ranks, const Card& card) {
  const auto with = [&](int64_t blocks) {
    RunConfig c = config;
    c.memory.recompute_blocks.set(blocks);
    return planned(std::move(c), ranks, card);
  };
  Setting best = with(0);
  if (fits(best, card)) return best;
  int64_t low = 0, high = config.model.num_layers;  // low does not fit, high does
  best = with(high);
  if (!fits(best, card)) return {};
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (Setting s = with(middle); fits(s, card)) {
      best = std::move(s);
      high = middle;
    } else {
      low = middle;
    }
  }
  return best;
}

std::vector<int64_t> divisors(int64_t n, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

struct Sharding {
  int64_t stage, degree;
};

// Groups of whole machines, and the given ones. In FP8 the groups may be what shares scales: then only the given ones.
std::vector<Sharding> shardings(const RunConfig& c, int64_t ranks, const Card& card) {
  const int64_t stage = c.parallel.zero_stage, given = c.parallel.shard_degree;
  const bool share_scales = c.fp8.enabled && c.fp8.reduce_amax &&
                            (c.fp8.reduce_group == ReduceGroup::shard || c.fp8.reduce_group == ReduceGroup::replica);
  if (ranks == 1 || share_scales) return {{stage, given}};
  std::vector<int64_t> degrees;
  for (const int64_t machines : divisors(ranks / card.local, ranks)) degrees.push_back(machines * card.local);
  if (given > 0 && std::ranges::find(degrees, given) == degrees.end()) degrees.push_back(given);
  std::vector<Sharding> all{{0, 0}};
  for (const int64_t s : {1, 2, 3})
    for (const int64_t degree : degrees) all.push_back({s, degree});
  return all;
}

// As the command line takes it.
std::string words_of(const RunConfig& c, int64_t ranks, const Card& card) {
  std::string words;
  if (ranks > 1) words = concat("parallel.zero_stage=", *c.parallel.zero_stage, " ");
  if (const int64_t degree = c.parallel.shard_degree; degree > 0 && (ranks > card.local || degree != ranks))
    words += concat("parallel.shard_degree=", degree, " ");
  if (c.model.num_experts > 0 && ranks > 1)
    words += concat("parallel.expert_parallel=", *c.parallel.expert_parallel, " ");
  return words + concat("training.micro_batch_size=", *c.training.micro_batch_size,
                        " memory.recompute_blocks=", *c.memory.recompute_blocks);
}

json as_json(const Setting& s, int64_t ranks, const Card& card) {
  return {{"settings", words_of(s.config, ranks, card)},
          {"zero_stage", *s.config.parallel.zero_stage},
          {"shard_degree", shard_degree(s.config, ranks)},
          {"expert_parallel", *s.config.parallel.expert_parallel},
          {"micro_batch_size", *s.config.training.micro_batch_size},
          {"recompute_blocks", *s.config.memory.recompute_blocks},
          {"tokens_per_second_per_gpu", s.tokens_per_second},
          {"total_bytes", s.bytes},
          {"fits", fits(s, card)}};
}

void print(const Setting& s, int64_t ranks, const Card& card) {
  std::printf("%15s %10s  %s%s\n", with_commas(std::llround(s.tokens_per_second)).c_str(),
              human_bytes(double(s.bytes)).c_str(), words_of(s.config, ranks, card).c_str(),
              fits(s, card) ? "" : "  DOES NOT FIT");
}

}  // namespace

std::vector<Setting> fastest_settings(const RunConfig& config, int64_t ranks, const Card& card) {
  const bool experts = config.model.num_experts > 0;
  std::vector<int64_t> spreads{1}, micro{*config.training.micro_batch_size};
  if (experts && ranks > 1) spreads = divisors(card.local, config.model.num_experts);
  if (!experts) micro = divisors(config.training.global_batch_size / ranks, 1024);
  std::vector<Setting> all;
  for (const Sharding& sharding : shardings(config, ranks, card))
    for (const int64_t spread : spreads)
      for (const int64_t size : micro) {
        RunConfig c = config;
        c.parallel.zero_stage.set(sharding.stage);
        c.parallel.shard_degree.set(sharding.degree);
        c.parallel.expert_parallel.set(spread);
        c.training.micro_batch_size.set(size);
        try {
          validate(c, ranks);
          std::optional<Setting> s = with_fewest_recomputed(c, ranks, card);
          if (!s) break;  // larger micro-batches take more memory still
          all.push_back(std::move(*s));
        } catch (const InputError&) {  // one that cannot be run, as FP8 with fewer tokens than its products take
        }
      }
  std::stable_sort(all.begin(), all.end(),
                   [](const Setting& a, const Setting& b) { return a.tokens_per_second > b.tokens_per_second; });
  return all;
}

int show_fastest(const Arguments& arguments, const RunConfig& config, int64_t ranks) {
  validate(config, ranks);
  const Card card = card_of(arguments, config, ranks);
  RunConfig given_config = config;
  const Planner planner = planner_for(card.target, int(ranks));
  if (const int64_t degree = chosen_shard_degree(config, {ranks, card.local, card.bytes}, planner))
    given_config.parallel.shard_degree.set(degree);
  const Setting given = planned(given_config, ranks, card);
  if (given.tokens_per_second == 0)
    arguments.refuse(concat("--fastest: nothing is known of the speed of ", card.name, " with weights in ",
                            config.precision.param_dtype.chosen(), "; use --target h100 or h200 and bf16"));
  const std::vector<Setting> all = fastest_settings(config, ranks, card);
  if (arguments.has("json")) {
    json list = json::array();
    for (const Setting& s : all) list.push_back(as_json(s, ranks, card));
    print_report({{"target", card.name},
                  {"ranks", ranks},
                  {"local_ranks", card.local},
                  {"card_bytes", int64_t(card.bytes)},
                  {"given", as_json(given, ranks, card)},
                  {"fastest", list}});
    return 0;
  }
  std::printf("on %s %s, %s of each for a run; tokens/s are predicted\n\n%15s %10s  settings\n",
              with_commas(ranks).c_str(), card.name, human_bytes(card.bytes).c_str(), "tokens/s a rank", "memory");
  for (size_t i = 0; i < std::min(all.size(), kShown); ++i) print(all[i], ranks, card);
  if (all.empty()) std::printf("none fits: take more ranks, or precision.moment_dtype=bf16\n");
  std::printf("as given\n");
  print(given, ranks, card);
  return 0;
}

}  // namespace octet
