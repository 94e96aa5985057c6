#pragma once
// What a command runs on: the engine, its target, and the ranks.
#include <functional>

#include "base/log.h"
#include "cli/command.h"
#include "host/engine.h"

namespace octet {

const Engine& choose_engine(const RunConfig& config);
// Refuses number formats that a card of this kind has no kernels for.
void require_types(const Target&, const RunConfig&);
Target target_of(const Engine& engine, const RunConfig& config);  // refuses what its card cannot do
Planner planner_for(const Target& target, int ranks);
Planner inference_planner(const Target& target, int64_t prompt);  // prompt: as Engine::plan_inference

// parallel.shard_degree where it is to be chosen: of ranks on several machines, the fewest whole machines whose ranks
// have the memory by plan, all ranks if none do. 0: as the config says, nothing is to be chosen.
struct Machines {
  int64_t ranks = 1, local = 1;  // of the run; of each machine
  double bytes = 0;              // free for a rank; 0: not known
};
int64_t chosen_shard_degree(const RunConfig&, const Machines&, const Planner&);
// Bytes of a card that arenas cannot have: CUDA's context and libraries, and NCCL of several ranks.
double beside_arenas(int64_t ranks);
RunConfig with_shard_degree(const RunConfig&, Host&, const Engine&, const Planner&);  // the same on all ranks

int64_t count_ranks(const Arguments& arguments, const Host* mpi);  // of mpirun, or of --ranks
// The ranks of mpirun, or `ranks` threads, or this process alone; with their share of the processors.
void on_ranks(Host* mpi, int64_t ranks, const std::function<void(Host&)>& body);
void log_as(const RunConfig& config, const Host* mpi, LogSetup::Readers readers = LogSetup::Readers::needed);

inline constexpr OptionSpec kRanksOption{"ranks", "N",
                                         "ranks, as threads of this process (under mpirun: its own ranks)", "1"};

// FLOPs that the model needs for a token, recomputation not counted.
struct TokenFlops {
  double causal = 0, full = 0;  // full: attention without regard to the mask, as many papers count
};
TokenFlops token_flops(const RunConfig& config, int64_t ranks, const Target& target, const PlanResult& plan);

}  // namespace octet
