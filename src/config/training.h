#pragma once
// What a run learns and how: data, training, optimizer and schedule.
#include "base/options.h"

namespace octet {

inline constexpr double kMostSteps = 1e12;          // limits keep products and sums of options within 64 bits
inline constexpr int64_t kMostSequences = 1 << 20;  // of a step: the plan counts every micro-batch of it

struct DataConfig : Section {
  DataConfig() : Section("data") {}
  Option<std::vector<std::string>> train{
      this, "train", {}, "token files to train on; * and ? in a name match many files"};
  Option<std::vector<std::string>> validation{this, "validation", {}, "token files to evaluate on"};
  Option<std::vector<double>> weights{this,
                                      "weights",
                                      {},
                                      "share of each entry of data.train in the mixture (empty: in proportion to size)",
                                      more_than(0)};
  Option<std::string> tokenizer{this, "tokenizer", "",
                                "tokenizer.model or tokenizer.json that made the token files; kept in checkpoints"};
  Option<bool> shuffle{this, "shuffle", true, "visit the sequences of an epoch in random order"};
  Option<double> validation_fraction{this, "validation_fraction", 0,
                                     "share of the training files kept for evaluation when data.validation is empty",
                                     from_below(0, 1)};
  Option<bool> document_loss_mask{this, "document_loss_mask", false, "no loss on a target that begins another document",
                                  Aliases{"document_mask"}};
  Option<bool> intra_document_mask{
      this, "intra_document_mask", false,
      "tokens attend only to tokens of their own document (FLOPs, of which less are done, are counted as without)"};
};

struct TrainingConfig : Section {
  TrainingConfig() : Section("training") {}
  Option<int64_t> steps{this, "steps", 0, "optimizer steps of the run (0: from training.tokens)",
                        between(0, kMostSteps)};
  Option<int64_t> tokens{this, "tokens", 0, "tokens of the run, rounded up to whole steps (0: from training.steps)",
                         between(0, 1e18)};
  Option<int64_t> stop_after{
      this, "stop_after", 0,
      "steps after which this process saves and stops, for the run to be resumed later (0: never)",
      between(0, kMostSteps)};
  Option<int64_t> global_batch_size{this, "global_batch_size", 32, "sequences of a step over all ranks",
                                    between(1, kMostSequences)};
  Option<int64_t> micro_batch_size{this, "micro_batch_size", 1, "sequences a rank computes at once",
                                   between(1, kMostSequences)};
  Option<int64_t> seq_len{this, "seq_len", 0, "tokens of a sequence (0: model.max_position_embeddings)",
                          between(0, 2147483647)};
  Option<int64_t> seed{this, "seed", 1234, "seed of initialisation, data order and stochastic rounding", at_least(0)};
  Option<int64_t> eval_every{this, "eval_every", 0, "steps between evaluations (0: only at the end)",
                             between(0, kMostSteps)};
  Option<int64_t> eval_sequences{this, "eval_sequences", 64, "sequences of the fixed validation set (0: no evaluation)",
                                 at_least(0)};
  Option<int64_t> max_skipped{
      this, "max_skipped", 50,
      "end the run after so many skipped steps in a row (non-finite loss, gradients or casts; 0: never)",
      between(0, kMostSteps)};
  Option<bool> deterministic{this, "deterministic", false,
                             "bitwise reproducible on a GPU, at some cost in speed (the CPU always is)"};
};

enum class OptimizerKind { adamw };
struct OptimizerConfig : Section {
  OptimizerConfig() : Section("optimizer") {}
  Choice<OptimizerKind> kind{this, "name", OptimizerKind::adamw, "update rule", {{"adamw", OptimizerKind::adamw}}};
  Option<double> beta1{this, "beta1", 0.9, "decay of the first moment", from_below(0, 1)};
  Option<double> beta2{this, "beta2", 0.95, "decay of the second moment", from_below(0, 1)};
  Option<double> eps{this, "eps", 1e-8, "added to the root of the second moment", at_least(1e-30)};
  Option<double> weight_decay{this, "weight_decay", 0.1, "decoupled decay of matrices, times the learning rate",
                              at_least(0)};
  Option<double> clip{this, "clip", 1.0, "clip the global gradient norm to this (0: no clipping)", at_least(0)};
};

enum class ScheduleKind { cosine, linear, wsd, constant };
struct ScheduleConfig : Section {
  ScheduleConfig() : Section("schedule") {}
  Choice<ScheduleKind> kind{this,
                            "kind",
                            ScheduleKind::cosine,
                            "what follows the warm-up; wsd: constant, then linear decay at the end",
                            {{"cosine", ScheduleKind::cosine},
                             {"linear", ScheduleKind::linear},
                             {"wsd", ScheduleKind::wsd},
                             {"constant", ScheduleKind::constant}}};
  Option<double> lr{this, "lr", 3e-4, "peak learning rate", more_than(0)};
  Option<double> min_lr{this, "min_lr", 3e-5, "learning rate of the last step (default: a tenth of the peak)",
                        at_least(0)};
  Option<int64_t> warmup_steps{this, "warmup_steps", 0, "steps of linear warm-up; the last one reaches the peak",
                               between(0, kMostSteps)};
  Option<int64_t> warmup_tokens{this, "warmup_tokens", 0, "the warm-up in tokens, rounded up to whole steps",
                                between(0, 1e18)};
  Option<int64_t> decay_steps{this, "decay_steps", 0, "wsd: steps of the decay (0: from schedule.decay_fraction)",
                              between(0, kMostSteps)};
  Option<double> decay_fraction{this, "decay_fraction", 0.1, "wsd: the decay as a share of all steps", between(0, 1)};
};

}  // namespace octet
