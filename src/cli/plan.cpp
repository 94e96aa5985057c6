// octet plan: memory, work and schedule of a run, by the plan engine. No GPU and no data are needed.
#include "cli/plan.h"

#include <cmath>

#include "base/json.h"
#include "cli/card.h"
#include "cli/fastest.h"
#include "cli/ranks.h"
#include "cli/report.h"
#include "config/globs.h"
#include "config/schedule.h"

namespace octet {
namespace {

// What is known of the speed: milliseconds of each class beside its work, and `predicted`, of the whole.
void add_prediction(json& plan, const RunConfig& config, int64_t ranks, const Card& card, const WorkLog& work) {
  const Prediction p = predict(work, config, ranks, card);
  if (p.step == 0) return;
  for (size_t k = 0; k < work.size(); ++k)
    if (p.seconds[k] > 0) plan["work"][name_of(Kernel(k))]["ms"] = 1e3 * p.seconds[k];
  plan["predicted"] = {{"step_ms", 1e3 * p.step},
                       {"tokens_per_second_per_gpu", double(tokens_per_step(config)) / double(ranks) / p.step},
                       {"card_measured", card.bandwidth == kMeasuredBandwidth},
                       {"network_assumed", p.network},
                       {"whole_sequences", *config.data.intra_document_mask}};
  if (const int64_t steps = total_steps(config)) plan["predicted"]["seconds"] = double(steps) * p.step;
}

json describe(const RunConfig& config, int64_t ranks, const Card& card) {
  const PlanResult plan = plan::engine().plan(config, int(ranks), card.target);
  const TokenFlops flops = token_flops(config, ranks, card.target, plan);
  json memory = json::object(), work = json::object();
  for (size_t i = 0; i < kMemoryNames.size(); ++i) memory[kMemoryNames[i]] = plan.memory.bytes[i];
  for (size_t k = 0; k < plan.work.size(); ++k) {
    const Work& w = plan.work[k];
    if (w.calls) work[name_of(Kernel(k))] = {{"calls", w.calls}, {"flops", w.flops}, {"bytes", w.bytes}};
  }
  const int64_t tokens = tokens_per_step(config), steps = total_steps(config);
  const ScheduleConfig& s = config.schedule;
  std::vector<std::string> warnings = warnings_of(config, ranks);
  for (std::string& line : warnings_of(config.fp8, plan.shapes)) warnings.push_back(std::move(line));
  json result{{"parameters", plan.parameters},
              {"target", card.name},
              {"ranks", ranks},
              {"local_ranks", card.local},
              {"zero_stage", *config.parallel.zero_stage},
              {"shard_degree", shard_degree(config, ranks)},
              {"memory_bytes", memory},
              {"total_bytes", plan.memory.total()},
              {"card_bytes", int64_t(card.bytes)},
              {"flops_per_token", {{"causal", std::llround(flops.causal)}, {"full", std::llround(flops.full)}}},
              {"work", work},
              {"schedule",
               {{"steps", steps},
                {"tokens", steps * tokens},
                {"kind", s.kind.chosen()},
                {"lr", *s.lr},
                {"min_lr", *s.min_lr},
                {"warmup_steps", warmup_steps(s, tokens)}}},
              {"batch",
               {{"sequences", *config.training.global_batch_size},
                {"seq_len", *config.training.seq_len},
                {"tokens", tokens},
                {"micro_batches", micro_steps(config, ranks)},
                {"micro_batch_size", *config.training.micro_batch_size}}},
              {"storage",
               {{"weights", config.precision.param_dtype.chosen()},
                {"gradients", config.precision.grad_dtype.chosen()},
                {"reduced in", config.precision.reduce_dtype.chosen()},
                {"masters", config.precision.master_dtype.chosen()},
                {"moments", config.precision.moment_dtype.chosen()}}},
              {"fp8", *config.fp8.enabled},
              {"precision", plan.precision},
              {"warnings", warnings},
              {"config", resolved(config)}};
  add_prediction(result, config, ranks, card, plan.work);
  return result;
}

int run_plan(const Arguments& arguments, Host* mpi) {
  const Words words = split_changes(arguments.words());
  if (words.leading.size() != 1) arguments.refuse("give one config file, followed by section.key=value");
  const RunConfig config = load_config(words.leading[0], words.changes);
  const int64_t ranks = count_ranks(arguments, mpi);
  return arguments.has("fastest") ? show_fastest(arguments, config, ranks) : show_plan(arguments, config, ranks);
}

}  // namespace

std::vector<OptionSpec> plan_options(OptionSpec ranks) {
  return {ranks,
          {"local-ranks", "N", "ranks per machine (default on GPUs: 8, or the most below that divides --ranks)"},
          {"target", "CARD", "cpu, a100, h100 or h200: what to plan for (default cpu where device is cpu, else h200)"},
          {"json", "", "print the plan as JSON"}};
}

int show_plan(const Arguments& arguments, const RunConfig& given, int64_t ranks) {
  validate(given, ranks);
  RunConfig config = given;
  const Card card = card_of(arguments, config, ranks);
  const int64_t chosen =
      chosen_shard_degree(config, {ranks, card.local, card.bytes}, planner_for(card.target, int(ranks)));
  if (chosen) config.parallel.shard_degree.set(chosen);
  json plan = describe(config, ranks, card);
  plan["chosen"] = chosen > 0;
  if (arguments.has("json")) print_report(plan);
  else print_plan(plan);
  return 0;
}

Command plan_command() {
  std::vector<OptionSpec> options = plan_options({"ranks", "N", "ranks to plan for (under mpirun: its own)", "1"});
  options.push_back(
      {"fastest", "", "search for the fastest settings that fit and, but for rounding, do not change what is learned"});
  return {
      .name = "plan",
      .usage = "CONFIG.json [section.key=value ...] [OPTIONS]",
      .summary = "show what a run needs: memory, FLOPs, time, schedule",
      .options = options,
      .more =
          "The same as octet train --dry-run. Needs neither a GPU nor data files. Times are predicted from rates\n"
          "fitted to runs of one and two H200s, which they give within 6 %; nothing was measured for H100s and more\n"
          "GPUs, and with data.intra_document_mask they are too long.\n"
          "\n"
          "  octet plan configs/llama2_7b.json --ranks 8 parallel.zero_stage=3\n"
          "  octet plan configs/p5/llama2_7b_fp8.json --ranks 16 --target h100 --fastest\n"
          "  octet plan configs/llama_1b.json --target a100 --json\n",
      .run = run_plan,
      .runs = Command::Runs::on_rank_0};
}

}  // namespace octet
