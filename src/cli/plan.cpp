// octet plan: memory, work and schedule of a run, by the plan engine. No GPU and no data are needed.
#include "cli/plan.h"

#include <cmath>
#include <cstdio>

#include "base/json.h"
#include "base/progress.h"
#include "cli/ranks.h"
#include "cli/report.h"
#include "config/globs.h"
#include "config/layers.h"
#include "config/schedule.h"

namespace octet {
namespace {

struct Card {
  const char* name;
  Target target;
  double bytes;  // of memory, as CUDA reports them; 0: the machine's
};
constexpr double kGiB = 1024. * 1024. * 1024.;
constexpr Card kCards[] = {
    {"cpu", {}, 0},
    {"a100", {.cuda = true, .compute_capability = 80, .multiprocessors = 108}, 79.2 * kGiB},
    {"h100", {.cuda = true, .compute_capability = 90, .multiprocessors = 132}, 79.1 * kGiB},
    {"h200", {.cuda = true, .compute_capability = 90, .multiprocessors = 132}, 139.7 * kGiB},
};

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
    require_types(card.target, config);
    if (config.fp8.enabled && !card.target.fp8())
      bad_input("fp8.enabled: ", name, " has compute capability ", card.target.compute_capability / 10, ".",
                card.target.compute_capability % 10, "; FP8 needs 8.9 or more. Set fp8.enabled=false");
    return card;
  }
  arguments.refuse(concat("--target ", name, ": expected cpu, a100, h100 or h200", did_you_mean(name, names)));
}

// Ranks per machine: --local-ranks, else the usual number.
int64_t local_ranks(const Arguments& arguments, int64_t ranks, const Card& card) {
  constexpr int64_t kUsual = 8;
  if (!arguments.has("local-ranks")) return card.target.cuda && ranks % kUsual == 0 ? kUsual : ranks;
  const int64_t local = arguments.integer("local-ranks", 1);
  if (ranks % local) arguments.refuse(concat("--local-ranks ", local, " does not divide the ", ranks, " ranks"));
  return local;
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
  return {{"parameters", plan.parameters},
          {"target", card.name},
          {"ranks", ranks},
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
}

void print_precision(const json& lines) {
  for (const std::string& line : merge_layers(lines.get<std::vector<std::string>>()))
    std::printf("  %s\n", line.c_str());
}

void print_memory(const json& plan) {
  std::printf("\nmemory of each rank\n");
  for (const auto& [name, bytes] : plan["memory_bytes"].items())
    std::printf("  %-18s %12s\n", name.c_str(), human_bytes(bytes.get<double>()).c_str());
  const double total = plan["total_bytes"], card = plan["card_bytes"];
  std::printf("  %-18s %12s", "total", human_bytes(total).c_str());
  if (card > 0)
    std::printf(" of the %s that %s has for it: %s", human_bytes(card).c_str(),
                plan["target"].get<std::string>().c_str(), total < card ? "fits" : "DOES NOT FIT");
  std::printf("\n");
  if (card > 0 && total >= card)
    std::printf(
        "  Lower training.micro_batch_size, recompute more (memory.recompute_blocks), shard more "
        "(parallel.zero_stage, more ranks),\n  or store moments in bf16 (precision.moment_dtype).\n");
}

void print_schedule(const json& plan) {
  const json &s = plan["schedule"], &b = plan["batch"];
  const auto count = [](const json& n) { return with_commas(n.get<int64_t>()); };
  std::printf("\nschedule\n");
  if (s["steps"] == 0) std::printf("  steps              not given (training.steps or training.tokens)\n");
  else std::printf("  steps              %s, %s tokens\n", count(s["steps"]).c_str(), count(s["tokens"]).c_str());
  std::printf("  learning rate      %s: warm-up of %s steps to %g", s["kind"].get<std::string>().c_str(),
              count(s["warmup_steps"]).c_str(), s["lr"].get<double>());
  if (s["kind"] == "constant") std::printf(", which stays\n");
  else std::printf(", then down to %g\n", s["min_lr"].get<double>());
  std::printf("  step               %s sequences of %s tokens: %s tokens, %s micro-batches of %s on each rank\n",
              count(b["sequences"]).c_str(), count(b["seq_len"]).c_str(), count(b["tokens"]).c_str(),
              count(b["micro_batches"]).c_str(), count(b["micro_batch_size"]).c_str());
}

void print(const json& plan) {
  const auto count = [](const json& n) { return with_commas(n.get<int64_t>()); };
  std::printf("parameters           %s\n", count(plan["parameters"]).c_str());
  std::printf("planned for          %s, %s %s\n", plan["target"].get<std::string>().c_str(),
              count(plan["ranks"]).c_str(), plan["ranks"] == 1 ? "rank" : "ranks");
  if (const int64_t ranks = plan["ranks"], degree = plan["shard_degree"]; ranks > 1 && plan["zero_stage"] == 0)
    std::printf("sharded              stage 0: nothing, every rank is a replica\n");
  else if (ranks > 1)
    std::printf("sharded              stage %s among %s ranks%s, %s such %s\n", count(plan["zero_stage"]).c_str(),
                with_commas(degree).c_str(),
                plan["chosen"] == true ? " (chosen: the fewest whole machines that have the memory)" : "",
                with_commas(ranks / degree).c_str(), ranks == degree ? "group" : "groups");
  const json& flops = plan["flops_per_token"];
  std::printf("FLOPs per token      %s causal, %s full\n", count(flops["causal"]).c_str(),
              count(flops["full"]).c_str());
  print_memory(plan);
  print_schedule(plan);
  std::printf("\nwork of a step on each rank    calls        TFLOP           GB\n");
  for (const auto& [name, w] : plan["work"].items())
    std::printf("  %-22s %11s %12.3f %12.3f\n", name.c_str(), count(w["calls"]).c_str(),
                w["flops"].get<double>() / 1e12, w["bytes"].get<double>() / 1e9);
  std::printf("\nprecision\n ");
  for (const auto& [what, type] : plan["storage"].items())
    std::printf(" %s %s,", what.c_str(), type.get<std::string>().c_str());
  std::printf(" products of the blocks in %s\n", plan["fp8"] == true ? "fp8" : "the type of the weights");
  print_precision(plan["precision"]);
  if (!plan["warnings"].empty()) std::printf("\nwarnings\n");
  for (const auto& line : plan["warnings"]) std::printf("  %s\n", line.get<std::string>().c_str());
}

int run_plan(const Arguments& arguments, Host* mpi) {
  const Words words = split_changes(arguments.words());
  if (words.leading.size() != 1) arguments.refuse("give one config file, followed by section.key=value");
  return show_plan(arguments, load_config(words.leading[0], words.changes), count_ranks(arguments, mpi));
}

}  // namespace

std::vector<OptionSpec> plan_options(OptionSpec ranks) {
  return {ranks,
          {"local-ranks", "N", "ranks per machine (default 8 on GPUs); --ranks must be a multiple"},
          {"target", "CARD", "cpu, a100, h100 or h200: what to plan for (default cpu where device is cpu, else h200)"},
          {"json", "", "print the plan as JSON"}};
}

int show_plan(const Arguments& arguments, const RunConfig& given, int64_t ranks) {
  validate(given, ranks);
  RunConfig config = given;
  const Card card = card_of(arguments, config, ranks);
  const int64_t chosen = chosen_shard_degree(config, {ranks, local_ranks(arguments, ranks, card), card.bytes},
                                             planner_for(card.target, int(ranks)));
  if (chosen) config.parallel.shard_degree.set(chosen);
  json plan = describe(config, ranks, card);
  plan["chosen"] = chosen > 0;
  if (arguments.has("json")) print_report(plan);
  else print(plan);
  return 0;
}

Command plan_command() {
  return {.name = "plan",
          .usage = "CONFIG.json [section.key=value ...] [OPTIONS]",
          .summary = "show what a run needs: memory, FLOPs, schedule",
          .options = plan_options({"ranks", "N", "ranks to plan for (under mpirun: its own)", "1"}),
          .more =
              "The same as octet train --dry-run. Needs neither a GPU nor data files.\n"
              "\n"
              "  octet plan configs/llama2_7b.json --ranks 8 parallel.zero_stage=3\n"
              "  octet plan configs/llama_1b.json --target a100 --json\n",
          .run = run_plan,
          .runs = Command::Runs::on_rank_0};
}

}  // namespace octet
