// octet bench: how fast a config trains on this machine, on random tokens.
#include <algorithm>
#include <cstdio>

#include "base/json.h"
#include "base/log.h"
#include "cli/ranks.h"
#include "cli/report.h"
#include "config/peaks.h"

namespace octet {
namespace {

struct Spread {
  double median = 0, least = 0, most = 0;
};
Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values.front(), values.back()};
}

bool counts_flops(Kernel k) {
  return k <= Kernel::attention_backward;  // products and attention; the others are bound by memory
}

// Of a step: seconds and share of a kernel class, and the rate at which its planned work was done.
json profile_of(const BenchResult& bench, const PlanResult& plan, const Spread& step) {
  json classes = json::object();
  const double steps = double(bench.step_seconds.size());
  for (size_t k = 0; k < bench.times.size(); ++k) {
    const double seconds = bench.times[k].seconds / steps;
    if (seconds <= 0) continue;
    const Work& work = plan.work[k];
    json& c = classes[name_of(Kernel(k))];
    c = {{"ms", 1e3 * seconds}, {"share", seconds / step.median}, {"calls", double(bench.times[k].calls) / steps}};
    if (counts_flops(Kernel(k))) c["tflops"] = work.flops / seconds / 1e12;
    else c["tb_per_second"] = work.bytes / seconds / 1e12;
  }
  return classes;
}

void print_profile(const json& classes, const Spread& step) {
  std::fprintf(stderr, "%-20s %10s %7s %10s %12s\n", "", "ms", "share", "calls", "rate");
  double sum = 0;
  for (const auto& [name, c] : classes.items()) {
    const bool flops = c.contains("tflops");
    sum += c["ms"].get<double>();
    std::fprintf(stderr, "%-20s %10.3f %6.1f%% %10.0f %8.3f %s\n", name.c_str(), c["ms"].get<double>(),
                 100 * c["share"].get<double>(), c["calls"].get<double>(),
                 c[flops ? "tflops" : "tb_per_second"].get<double>(), flops ? "TFLOP/s" : "TB/s");
  }
  std::fprintf(stderr, "%-20s %10.3f of %.3f ms a step\n", "together", sum, 1e3 * step.median);
}

json report_of(const RunConfig& config, const BenchResult& bench, const TokenFlops& flops, int64_t ranks) {
  std::vector<double> rates;
  for (double seconds : bench.step_seconds) rates.push_back(double(bench.tokens_per_step) / seconds);
  const Spread rate = spread_of(rates), step = spread_of(bench.step_seconds);
  const Peak peaks = peak_of(bench.device);
  const double peak = config.fp8.enabled ? peaks.fp8 : peaks.bf16;
  json report{{"device", bench.device},
              {"ranks", ranks},
              {"tokens_per_second_per_gpu", {{"median", rate.median}, {"min", rate.least}, {"max", rate.most}}},
              {"step_ms", {{"median", 1e3 * step.median}, {"min", 1e3 * step.least}, {"max", 1e3 * step.most}}},
              {"tokens_per_step_per_gpu", bench.tokens_per_step},
              {"tflops", {{"causal", rate.median * flops.causal / 1e12}, {"full", rate.median * flops.full / 1e12}}}};
  if (peak > 0)
    report["mfu"] = {{"causal", rate.median * flops.causal / peak},
                     {"full", rate.median * flops.full / peak},
                     {"peak_tflops", peak / 1e12}};
  report["memory"] = {
      {"peak_bytes", bench.peak_bytes},
      {"planned_bytes", bench.planned_bytes},
      {"overhead_bytes", int64_t(bench.peak_bytes) - int64_t(bench.planned_bytes)},  // context, libraries
      {"unused_bytes", bench.planned_bytes - bench.arena_bytes}};                    // reserved for nothing
  if (const double seconds = bench.times[size_t(Kernel::wait)].seconds / double(bench.step_seconds.size()); seconds > 0)
    report["waiting"] = {{"ms", 1e3 * seconds}, {"share", seconds / step.median}};  // of compute for communication
  report["zero_stage"] = *config.parallel.zero_stage;
  report["shard_degree"] = shard_degree(config, ranks);
  report["loss"] = bench.loss;
  report["norm"] = bench.norm;
  return report;
}

// Each op and product of the config by itself: what one call does, by the plan, and how fast.
int bench_ops(const RunConfig& config, const Engine& engine, const Target& target, const PlanResult& plan,
              const std::string& which) {
  const OpKinds kinds{.layers = which != "products", .products = which != "layers"};
  const std::vector<OpTime> counted = plan::engine().bench_ops(config, target, plan, kinds);
  const std::vector<OpTime> timed = engine.bench_ops(config, target, plan, kinds);
  json ops = json::array();
  for (size_t i = 0; i < timed.size(); ++i) {
    const double flops = counted[i].flops, bytes = counted[i].bytes, seconds = timed[i].seconds;
    json op{{"op", timed[i].name}, {"us", 1e6 * seconds}, {"megabytes", bytes / 1e6}};
    if (flops > 0) op["tflops"] = flops / seconds / 1e12;
    else op["tb_per_second"] = bytes / seconds / 1e12;
    std::fprintf(stderr, "%-72s %10.1f us %9.1f MB %9.3f %s\n", timed[i].name.c_str(), 1e6 * seconds, bytes / 1e6,
                 (flops > 0 ? flops : bytes) / seconds / 1e12, flops > 0 ? "TFLOP/s" : "TB/s");
    ops.push_back(std::move(op));
  }
  print_report(ops);
  return 0;
}

int bench(const Arguments& arguments, Host* mpi) {
  const Words words = split_changes(arguments.words());
  if (words.leading.size() != 1) arguments.refuse("give one config file, followed by section.key=value");
  RunConfig config = load_config(words.leading[0], words.changes);
  const int64_t ranks = count_ranks(arguments, mpi);
  const BenchRequest request{.steps = arguments.integer("steps", 1, 1'000'000'000),
                             .warmup = arguments.integer("warmup", 0, 1'000'000'000),
                             .profile = arguments.has("profile")};
  validate(config, ranks);
  log_as(config, mpi);
  const Engine& engine = choose_engine(config);
  const Target target = target_of(engine, config);
  const Planner planner = planner_for(target, int(ranks));
  if (arguments.has("ops")) {
    if (ranks > 1) arguments.refuse("--ops times one device: run it on one rank");
    const std::string which = arguments.text("ops");
    if (which != "all" && which != "layers" && which != "products")
      arguments.refuse(concat("--ops is all, layers or products, not '", which, "'"));
    return bench_ops(config, engine, target, planner(config), which);
  }
  BenchResult result;
  int64_t degree = 0;
  on_ranks(mpi, ranks, [&](Host& host) {
    const RunConfig shared = with_shard_degree(config, host, engine, planner);
    BenchResult mine = engine.bench(shared, host, planner, request);
    if (host.rank() == 0) {
      result = std::move(mine);
      degree = shared.parallel.shard_degree;
    }
  });
  if (mpi && mpi->rank()) return 0;
  config.parallel.shard_degree.set(degree);
  const PlanResult plan = planner(config);
  json report = report_of(config, result, token_flops(config, ranks, target, plan), ranks);
  if (request.profile) {
    const Spread step = spread_of(result.step_seconds);
    report["profile"] = profile_of(result, plan, step);
    if (report["profile"].empty()) log_warning("this device does not time kernels: the profile is empty");
    else print_profile(report["profile"], step);
  }
  print_report(report);
  return 0;
}

}  // namespace

Command bench_command() {
  return {.name = "bench",
          .usage = "CONFIG.json [section.key=value ...] [OPTIONS]",
          .summary = "measure training speed on random tokens",
          .options = {{"steps", "N", "steps to measure", "10"},
                      {"warmup", "N", "warm-up steps before them", "3"},
                      {"ops", "WHICH",
                       "time single operations instead of steps: all, layers (all but matrix products) or products"},
                      {"profile", "", "also time every kernel class (steps get slower)"},
                      kRanksOption},
          .more =
              "Prints one line of JSON; with --profile or --ops also a table on standard error. No data files are\n"
              "needed.\n"
              "--ops calls each operation 20 times on the same tensors; small ones may run from the card's cache.\n"
              "\n"
              "  octet bench configs/llama_1b.json fp8.enabled=true --steps 20\n"
              "  octet bench configs/llama_1b.json fp8.enabled=true --ops layers\n"
              "  octet bench configs/tiny_llama.json --steps 3\n",
          .run = bench,
          .runs = Command::Runs::on_ranks};
}

}  // namespace octet
