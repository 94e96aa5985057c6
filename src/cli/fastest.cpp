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

// What the settings of a config come to, where it can be run and fits.
std::optional<Setting> fitting(RunConfig c, int64_t ranks, const Card& card) {
  try {
    validate(c, ranks);
  } catch (const InputError&) { return {}; }  // as groups of experts that do not divide the ranks
  const Planner planner = planner_for(card.target, int(ranks));
  if (const int64_t degree = chosen_shard_degree(c, {ranks, card.local, card.bytes}, planner))
    c.parallel.shard_degree.set(degree);
  const PlanResult plan = planner(c);
  const Prediction p = predict(plan.work, c, ranks, card);
  const double bytes = double(plan.memory.total());
  if (bytes >= card.bytes || p.step == 0) return {};
  const double tokens = double(tokens_per_step(c)) / double(ranks);
  return Setting{std::move(c), bytes, tokens / p.step};
}

// With the fewest recomputed blocks: more of them take less memory and more time.
std::optional<Setting> with_fewest_recomputed(RunConfig c, int64_t ranks, const Card& card) {
  const auto with = [&](int64_t blocks) {
    c.memory.recompute_blocks.set(blocks);
    return fitting(c, ranks, card);
  };
  std::optional<Setting> best = with(0);
  if (best) return best;
  int64_t low = 0, high = c.model.num_layers;  // low does not fit, high does
  best = with(high);
  if (!best) return {};
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (std::optional<Setting> s = with(middle)) {
      best = std::move(s);
      high = middle;
    } else {
      low = middle;
    }
  }
  return best;
}

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

// As the command line takes it.
std::string words_of(const RunConfig& c, int64_t ranks) {
  std::string words;
  if (ranks > 1) words = concat("parallel.zero_stage=", *c.parallel.zero_stage, " ");
  if (c.model.num_experts > 0 && ranks > 1)
    words += concat("parallel.expert_parallel=", *c.parallel.expert_parallel, " ");
  return words + concat("training.micro_batch_size=", *c.training.micro_batch_size,
                        " memory.recompute_blocks=", *c.memory.recompute_blocks);
}

json as_json(const Setting& s, int64_t ranks) {
  return {{"settings", words_of(s.config, ranks)},
          {"tokens_per_second_per_gpu", s.tokens_per_second},
          {"total_bytes", s.bytes}};
}

void print(const Setting& s, int64_t ranks) {
  std::printf("%15s %10s  %s\n", with_commas(std::llround(s.tokens_per_second)).c_str(), human_bytes(s.bytes).c_str(),
              words_of(s.config, ranks).c_str());
}

}  // namespace

std::vector<Setting> fastest_settings(const RunConfig& config, int64_t ranks, const Card& card) {
  const bool experts = config.model.num_experts > 0;
  std::vector<int64_t> stages{*config.parallel.zero_stage}, spreads{1}, micro{*config.training.micro_batch_size};
  if (ranks > 1) stages = {0, 1, 2, 3};
  if (ranks > 1 && experts) spreads = divisors(std::min(ranks, card.local));
  if (!experts) micro = divisors(config.training.global_batch_size / ranks);
  std::vector<Setting> all;
  for (const int64_t stage : stages)
    for (const int64_t spread : spreads)
      for (const int64_t size : micro) {
        RunConfig c = config;
        c.parallel.zero_stage.set(stage);
        c.parallel.expert_parallel.set(spread);
        c.training.micro_batch_size.set(size);
        std::optional<Setting> s = with_fewest_recomputed(std::move(c), ranks, card);
        if (!s && !experts) break;  // larger ones take more memory still
        if (s) all.push_back(std::move(*s));
      }
  std::stable_sort(all.begin(), all.end(),
                   [](const Setting& a, const Setting& b) { return a.tokens_per_second > b.tokens_per_second; });
  return all;
}

int show_fastest(const Arguments& arguments, const RunConfig& config, int64_t ranks) {
  validate(config, ranks);
  const Card card = card_of(arguments, config, ranks);
  if (predict(plan::engine().plan(config, int(ranks), card.target).work, config, ranks, card).step == 0)
    arguments.refuse(concat("--fastest: nothing is known of the speed of ", card.name, " with weights in ",
                            config.precision.param_dtype.chosen(), "; use --target h100 or h200 and bf16"));
  const std::vector<Setting> all = fastest_settings(config, ranks, card);
  const std::optional<Setting> given = fitting(config, ranks, card);
  if (arguments.has("json")) {
    json list = json::array();
    for (const Setting& s : all) list.push_back(as_json(s, ranks));
    print_report({{"target", card.name},
                  {"card_bytes", card.bytes},
                  {"given", given ? as_json(*given, ranks) : json()},
                  {"fastest", list}});
    return 0;
  }
  std::printf("on %s %s, %s of each for a run; tokens/s are predicted\n\n%15s %10s  settings\n",
              with_commas(ranks).c_str(), card.name, human_bytes(card.bytes).c_str(), "tokens/s a rank", "memory");
  for (size_t i = 0; i < std::min(all.size(), kShown); ++i) print(all[i], ranks);
  if (all.empty()) std::printf("none fits: take more ranks, or precision.moment_dtype=bf16\n");
  std::printf("as given\n");
  if (given) print(*given, ranks);
  else std::printf("%26s  %s\n", "does not fit", words_of(config, ranks).c_str());
  return 0;
}

}  // namespace octet
