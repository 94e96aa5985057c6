#pragma once
// How a run uses the machine: sharding, memory, checkpoints and logs.
#include "base/log.h"
#include "base/options.h"

namespace octet {

struct ParallelConfig : Section {
  ParallelConfig() : Section("parallel") {}
  Option<int64_t> zero_stage{this, "zero_stage", 1,
                             "sharded over ranks: 0 nothing, 1 the optimizer, 2 and gradients, 3 and parameters",
                             between(0, 3)};
  Option<int64_t> shard_degree{
      this, "shard_degree", 0,
      "ranks that shard among themselves, such groups replicate (0: a machine's, or of more if memory wants it)",
      at_least(0)};
  Option<int64_t> prefetch{this, "prefetch", 1, "blocks gathered ahead in stage 3", between(0, 16)};
  Option<bool> nccl_register{this, "nccl_register", false,
                             "let NCCL work in the arenas directly (start with NCCL_LEGACY_CUDA_REGISTER=1)"};
  Option<int64_t> nccl_ctas{this, "nccl_ctas", 0, "most thread blocks of a collective (0: NCCL's choice)",
                            between(0, 64)};
  Option<int64_t> expert_parallel{this, "expert_parallel", 1, "ranks over which a layer's experts are spread",
                                  at_least(1)};
  Option<double> expert_buffer{
      this, "expert_buffer", 2.0,
      "room for tokens from other ranks, as a multiple of the mean; the rest goes in further rounds", at_least(1)};
  Option<int64_t> check_every{this, "check_every", 0,
                              "steps between comparisons of what ranks hold in common (0: never)", at_least(0)};
  Option<double> watchdog_seconds{this, "watchdog_seconds", 25,
                                  "a rank that makes no progress for so long ends the job (0: never)", at_least(0)};
};

struct MemoryConfig : Section {
  MemoryConfig() : Section("memory") {}
  Option<int64_t> recompute_blocks{this, "recompute_blocks", 0,
                                   "first blocks whose activations are computed again in backward", at_least(0)};
  Option<int64_t> head_chunk{this, "head_chunk", 0, "rows of logits held at once (0: chosen)", at_least(0)};
  Option<std::string> plan_cache{
      this, "plan_cache", "out/product-plans.jsonl",
      "file that keeps which algorithm each matrix product runs by on this card (\"\": none)"};
  Option<bool> poison{this, "poison", false, "fill fresh memory with NaN, to find reads before writes", Hidden{}};
};

struct CheckpointConfig : Section {
  CheckpointConfig() : Section("checkpoint") {}
  Option<std::string> dir{this, "dir", "out/checkpoints", "folder of the checkpoints (\"\": none are written)"};
  Option<int64_t> every{this, "every", 0, "steps between checkpoints (0: only at the end)", at_least(0)};
  Option<int64_t> keep{this, "keep", 2, "newest checkpoints that are kept (0: all)", at_least(0)};
  Option<double> buffer_gib{
      this, "buffer_gib", -1,
      "GiB of host memory in which a rank holds what a save has still to write, while training goes on (0: training "
      "waits for each save; -1: half of what is free on the machine, shared by its ranks)",
      at_least(-1)};
  Option<std::string> resume{this, "resume", "auto",
                             "auto: from the newest checkpoint of checkpoint.dir, if any; none; or the path of one"};
};

struct LogConfig : Section {
  LogConfig() : Section("log") {}
  Option<int64_t> every{this, "every", 1, "steps between lines of the log", at_least(1)};
  Option<std::string> file{this, "file", "", "metrics of every step as lines of JSON (\"\": none)"};
  Option<int64_t> fp8_every{this, "fp8_every", 0, "steps between figures of FP8's health (0: never)", at_least(0)};
  Choice<LogLevel> level{this,
                         "level",
                         LogLevel::info,
                         "least serious messages shown",
                         {{"debug", LogLevel::debug},
                          {"info", LogLevel::info},
                          {"warning", LogLevel::warning},
                          {"error", LogLevel::error}}};
  Option<bool> progress{this, "progress", true, "show a progress bar when standard error is a terminal"};
};

}  // namespace octet
