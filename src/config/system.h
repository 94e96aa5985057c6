#pragma once
// How a run uses the machine: sharding, memory, checkpoints and logs.
#include "base/log.h"
#include "base/options.h"

namespace octet {

struct ParallelConfig : Section {
  ParallelConfig() : Section("parallel") {}
  Option<int64_t> zero_stage{this, "zero_stage", 1,
                             "what ranks shard: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters",
                             between(0, 3)};
  Option<int64_t> shard_degree{
      this, "shard_degree", 0,
      "ranks of a sharding group; the groups are replicas (0: one machine, or more if memory requires it)",
      at_least(0)};
  Option<int64_t> prefetch{this, "prefetch", 1, "blocks gathered ahead in stage 3", between(0, 16)};
  Option<bool> nccl_register{this, "nccl_register", false,
                             "let NCCL work in the arenas directly (start with NCCL_LEGACY_CUDA_REGISTER=1)"};
  Option<int64_t> nccl_ctas{this, "nccl_ctas", 0, "thread blocks that a collective may use (0: NCCL's choice)",
                            between(0, 64)};
  Option<int64_t> expert_parallel{this, "expert_parallel", 1, "ranks over which a layer's experts are spread",
                                  at_least(1)};
  Option<double> expert_buffer{
      this, "expert_buffer", 2.0,
      "receive buffer, as a multiple of the mean number of tokens; more tokens take further rounds", at_least(1)};
  Option<int64_t> check_every{this, "check_every", 0,
                              "steps between checks that replicated state is equal on all ranks (0: never)",
                              at_least(0)};
  Option<double> watchdog_seconds{this, "watchdog_seconds", 25,
                                  "end the job when a rank makes no progress for this long (0: never)", at_least(0)};
};

struct MemoryConfig : Section {
  MemoryConfig() : Section("memory") {}
  Option<int64_t> recompute_blocks{
      this, "recompute_blocks", 0,
      "number of first blocks whose activations are recomputed in the backward pass (-1: all)", at_least(-1)};
  Option<int64_t> head_chunk{this, "head_chunk", 0, "rows of logits held at once (0: automatic)", at_least(0)};
  Option<std::string> plan_cache{
      this, "plan_cache", "out/product-plans.jsonl",
      "file that caches the tuned algorithm of each matrix product on this card (\"\": none)"};
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
  Option<std::string> resume{
      this, "resume", "auto",
      "auto: from the newest checkpoint of checkpoint.dir, if any; none; or the path of one, or of a run's folder"};
};

struct LogConfig : Section {
  LogConfig() : Section("log") {}
  Option<int64_t> every{this, "every", 1, "steps between log lines", at_least(1)};
  Option<std::string> file{this, "file", "", "file for the metrics of every step, as JSON lines (\"\": none)"};
  Option<int64_t> fp8_every{this, "fp8_every", 0, "steps between reports on the health of FP8 casts (0: never)",
                            at_least(0)};
  Choice<LogLevel> level{this,
                         "level",
                         LogLevel::info,
                         "lowest severity of messages shown",
                         {{"debug", LogLevel::debug},
                          {"info", LogLevel::info},
                          {"warning", LogLevel::warning},
                          {"error", LogLevel::error}}};
  Option<bool> progress{this, "progress", true, "show a progress bar when standard error is a terminal"};
};

}  // namespace octet
