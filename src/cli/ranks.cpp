#include "cli/ranks.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>

#include "base/log.h"
#include "host/deadline.h"
#include "host/last_words.h"
#include "host/processors.h"

namespace octet {
namespace {

std::string who(const Host& host) { return host.size() > 1 ? name_of_rank(host) : "rank 0"; }

// If every rank used all processors, the ranks of one machine would mostly wait for each other's threads.
// OMP_NUM_THREADS has precedence.
void share_processors(Host& host) {
  const Deadline limit(host.shares_memory() ? 0 : kMostForMpi,
                       concat(who(host), " has waited ", kMostForMpi, " s for a first word of all ranks"));
  const int share = fair_share(host);
  if (share > 0 && !std::getenv("OMP_NUM_THREADS")) omp_set_num_threads(share);
}

}  // namespace

const Engine& choose_engine(const RunConfig& config) {
  const Engine& gpu = gpu::engine();
  if (config.device == DeviceKind::cpu || (config.device == DeviceKind::automatic && !gpu.available()))
    return cpu::engine();
  if (!gpu.available()) {
    if (std::string_view(gpu.name) != "gpu") gpu.target();  // says that it was not built
    bad_input("device is cuda, but no CUDA device was found: check the driver with nvidia-smi, or set device=cpu");
  }
  return gpu;
}

void require_types(const Target& target, const RunConfig& config) {
  const auto& type = config.precision.param_dtype;
  if (target.cuda && (type == DType::f16 || type == DType::f64))
    bad_input("precision.param_dtype=", type,
              " runs on the CPU engine only in this version; use bf16, or set device=cpu");
}

Target target_of(const Engine& engine, const RunConfig& config) {
  Target target = engine.target();
  target.deterministic = !target.cuda || config.training.deterministic;
  require_types(target, config);
  const AttentionKind attention = config.model.attention;
  if (target.cuda && target.attention == AttentionKind::native && attention == AttentionKind::cudnn)
    bad_input(
        "model.attention is cudnn, but this executable was built without cuDNN, or this card has compute capability ",
        "below 9.0: set model.attention=native");
  if (target.attention != AttentionKind::native) target.attention = attention;
  if (config.fp8.enabled && !target.fp8())
    bad_input("fp8.enabled: this card has compute capability ", target.compute_capability / 10, ".",
              target.compute_capability % 10, "; FP8 needs 8.9 or more (Ada, Hopper). Set fp8.enabled=false");
  return target;
}

Planner planner_for(const Target& target, int ranks) {
  return [=](const RunConfig& config) { return plan::engine().plan(config, ranks, target); };
}

Planner inference_planner(const Target& target, int64_t prompt) {
  return [=](const RunConfig& config) { return plan::engine().plan_inference(config, target, prompt); };
}

int64_t chosen_shard_degree(const RunConfig& config, const Machines& m, const Planner& planner) {
  const bool whole_machines = m.local < m.ranks && m.ranks % m.local == 0;
  if (config.parallel.shard_degree > 0 || config.parallel.zero_stage == 0 || !whole_machines) return 0;
  RunConfig c = config;
  for (int64_t degree = m.local; degree < m.ranks; degree += m.local) {
    if (m.ranks % degree) continue;
    c.parallel.shard_degree.set(degree);
    if (m.bytes == 0 || double(planner(c).memory.total()) <= m.bytes) return degree;
  }
  return m.ranks;
}

double beside_arenas(int64_t ranks) { return ranks > 1 ? 3e9 : 0.7e9; }  // measured: 2.6, and alone 0.6

RunConfig with_shard_degree(const RunConfig& config, Host& host, const Engine& engine, const Planner& planner) {
  RunConfig c = config;
  struct Place {
    double bytes;
    int local_rank, local_size;
  };
  std::vector<Place> all(size_t(host.size()));
  const int local = host.local_size();
  const double most = host.shares_memory() ? 0 : 40 * config.parallel.watchdog_seconds;  // as its phase "start"
  const Deadline limit(most,
                       concat(who(host), " has waited ", most,
                              " s at the start for its own card, or for a word of all ranks: look at the nodes of "
                              "ranks that do not say so"));
  const Place mine{host.size() > local ? double(engine.room(host)) : 0, host.local_rank(), local};
  host.all_gather(all.data(), &mine, sizeof mine);
  double least = all[0].bytes;
  for (size_t r = 0; r < all.size(); ++r) {
    // Unless consecutive ranks share a machine, with as many on each, there is nothing to choose.
    if (all[r].local_size != all[0].local_size || all[r].local_rank != int(r) % all[0].local_size) return c;
    least = std::min(least, all[r].bytes);
  }
  const double bytes = std::max(1., engine.target().cuda ? least - beside_arenas(host.size()) : least);
  if (const int64_t degree = chosen_shard_degree(c, {host.size(), local, bytes}, planner))
    c.parallel.shard_degree.set(degree);
  return c;
}

int64_t count_ranks(const Arguments& arguments, const Host* mpi) {
  constexpr int64_t kMost = 1'000'000;  // beyond any cluster, and what a batch times ranks has room for
  const int64_t asked = arguments.integer("ranks", 1, kMost);
  if (!mpi) return asked;
  if (arguments.has("ranks") && asked != mpi->size())
    bad_input("--ranks ", asked, ", but ", mpi->size(), " ranks were started by mpirun: leave --ranks out");
  return mpi->size();
}

void on_ranks(Host* mpi, int64_t ranks, const std::function<void(Host&)>& body) {
  const auto run = [&](Host& host) {
    share_processors(host);
    body(host);
  };
  if (mpi) return run(*mpi);
  constexpr int64_t kMost = 256;  // meant for experiments
  if (ranks > kMost) bad_input("--ranks ", ranks, ": at most ", kMost, " threads; start more ranks with mpirun");
  if (ranks > 1) return run_threads(int(ranks), run);
  LoneHost alone;
  body(alone);
}

void log_as(const RunConfig& config, const Host* mpi, LogSetup::Readers readers) {
  start_logging(
      {.rank = mpi ? mpi->rank() : 0, .ranks = mpi ? mpi->size() : 1, .level = config.log.level, .readers = readers});
}

TokenFlops token_flops(const RunConfig& config, int64_t ranks, const Target& target, const PlanResult& plan) {
  WorkLog work = plan.work;
  if (config.memory.recompute_blocks > 0) {  // recomputed FLOPs are not needed ones
    RunConfig once = config;
    once.memory.recompute_blocks.set(0);
    work = plan::engine().plan(once, int(ranks), target).work;
  }
  const double tokens = double(tokens_per_step(config)) / double(ranks);
  TokenFlops flops;
  for (const Work& w : work) flops.causal += w.flops / tokens;
  flops.full = flops.causal;
  for (Kernel k : {Kernel::attention_forward, Kernel::attention_backward}) flops.full += work[size_t(k)].flops / tokens;
  return flops;
}

}  // namespace octet
