// A plan for people.
#include <cmath>
#include <cstdio>

#include "base/progress.h"
#include "cli/plan.h"
#include "config/layers.h"

namespace octet {
namespace {

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
        "(parallel.zero_stage, more ranks),\n  or store moments in bf16 (precision.moment_dtype).%s\n",
        plan.contains("predicted") ? " octet plan --fastest searches for settings that fit." : "");
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

void print_work(const json& plan) {
  const bool predicted = plan.contains("predicted");
  std::printf("\nwork of a step on each rank    calls        TFLOP           GB%s\n", predicted ? "        ms" : "");
  for (const auto& [name, w] : plan["work"].items()) {
    std::printf("  %-22s %11s %12.3f %12.3f", name.c_str(), with_commas(w["calls"].get<int64_t>()).c_str(),
                w["flops"].get<double>() / 1e12, w["bytes"].get<double>() / 1e9);
    if (w.contains("ms")) std::printf(" %9.1f", w["ms"].get<double>());
    std::printf("\n");
  }
  if (!predicted) return;
  const json& p = plan["predicted"];
  const std::string card = plan["target"];
  std::printf("\npredicted\n  step               %s ms, %s tokens/s on each rank\n",
              with_commas(std::llround(p["step_ms"].get<double>())).c_str(),
              with_commas(std::llround(p["tokens_per_second_per_gpu"].get<double>())).c_str());
  if (p.contains("seconds"))
    std::printf("  all steps          %s\n", human_duration(p["seconds"].get<double>()).c_str());
  std::printf("  rates              fitted to runs of one and two H200s%s%s\n",
              p["card_measured"] == true ? "" : concat("; memory's by the bandwidth of ", card).c_str(),
              p["network_assumed"] == true ? "; between machines 50 GB/s a card are assumed" : "");
  if (p["whole_sequences"] == true) std::printf("                     as if tokens attended to other documents too\n");
}

}  // namespace

void print_plan(const json& plan) {
  const auto count = [](const json& n) { return with_commas(n.get<int64_t>()); };
  std::printf("parameters           %s\n", count(plan["parameters"]).c_str());
  std::printf("planned for          %s, %s %s", plan["target"].get<std::string>().c_str(), count(plan["ranks"]).c_str(),
              plan["ranks"] == 1 ? "rank" : "ranks");
  if (plan["ranks"] > plan["local_ranks"]) std::printf(", %s to a machine", count(plan["local_ranks"]).c_str());
  std::printf("\n");
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
  print_work(plan);
  std::printf("\nprecision\n ");
  for (const auto& [what, type] : plan["storage"].items())
    std::printf(" %s %s,", what.c_str(), type.get<std::string>().c_str());
  std::printf(" products of the blocks in %s\n", plan["fp8"] == true ? "fp8" : "the type of the weights");
  print_precision(plan["precision"]);
  if (!plan["warnings"].empty()) std::printf("\nwarnings\n");
  for (const auto& line : plan["warnings"]) std::printf("  %s\n", line.get<std::string>().c_str());
}

}  // namespace octet
