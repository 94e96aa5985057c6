// Cross-checks between options. Each message names the options, their values and what to change.
#include <algorithm>
#include <limits>

#include "config/config.h"
#include "config/schedule.h"

namespace octet {
namespace {

class Checks {
 public:
  Checks(const RunConfig& config, int64_t ranks) : c_(config), ranks_(ranks) {}

  void all() {
    batch();
    schedule();
    data();
    precision();
    fp8();
    system();
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) {
    bad_input(c_.where, ": ", parts...);
  }

  void batch() {
    const TrainingConfig& t = c_.training;
    if (t.seq_len > c_.model.max_positions)
      refuse("training.seq_len (", t.seq_len, ") is longer than the model's range: model.max_position_embeddings is ",
             c_.model.max_positions);
    constexpr int64_t kMostRows = int64_t{1} << 27;  // a hundred times what any card has room for
    if (t.micro_batch_size * t.seq_len > kMostRows)
      refuse("training.micro_batch_size times training.seq_len is ", t.micro_batch_size * t.seq_len,
             " tokens that a rank computes at once; at most ", kMostRows, ": lower one of them");
    if (t.global_batch_size % (std::max<int64_t>(ranks_, 1) * t.micro_batch_size))
      refuse("training.global_batch_size (", t.global_batch_size, ") is not a multiple of training.micro_batch_size (",
             t.micro_batch_size, ")", ranks_ > 1 ? concat(" times ", ranks_, " ranks") : "");
  }

  void schedule() {
    const ScheduleConfig& s = c_.schedule;
    if (s.min_lr > s.lr) refuse("schedule.min_lr (", s.min_lr, ") is above schedule.lr (", s.lr, ")");
  }

  void data() {
    const DataConfig& d = c_.data;
    if (!d.weights->empty() && d.weights->size() != d.train->size())
      refuse("data.weights has ", d.weights->size(), " entries for ", d.train->size(), " of data.train; give one each");
  }

  void precision() {
    const PrecisionConfig& p = c_.precision;
    if (const float scale = first_loss_scale(p); !(scale > 0 && scale <= std::numeric_limits<float>::max()))
      refuse("precision.loss_scale (", p.loss_scale, ") does not fit into fp32; give a number between 1 and 2^24");
    if (p.param_dtype == DType::f64) return;
    for (const Choice<DType>* type :
         {&p.grad_dtype, &p.reduce_dtype, &p.buffer_dtype, &p.master_dtype, &p.moment_dtype})
      if (*type == DType::f64) refuse("precision.", type->name(), ": fp64 needs precision.param_dtype fp64");
  }

  void fp8() {
    const Fp8Config& f = c_.fp8;
    if (f.format == Fp8Format::e5m2)
      refuse(
          "fp8.format: \"E5M2\" is not supported: no hardware multiplies E5M2 by E5M2; use HYBRID, whose gradients "
          "are E5M2, or E4M3");
    if (f.fp8_dpa || f.fp8_mha)
      refuse("fp8.", f.fp8_dpa ? f.fp8_dpa.name() : f.fp8_mha.name(),
             ": attention in FP8 is not supported: on Hopper it "
             "is slower than bf16 from 8192 tokens on, and less accurate; set it to false");
    if (f.moe_per_expert_scales && c_.model.num_experts == 0)
      refuse("fp8.moe_per_expert_scales: the model has no experts; set it to false");
    if (f.use_mxfp8_block_scaling)
      refuse("fp8.use_mxfp8_block_scaling: block scaling needs Blackwell; set it to false");
    if (f.reduce_amax != (f.reduce_group != ReduceGroup::none))
      refuse("fp8.reduce_amax (", f.reduce_amax, ") contradicts fp8.reduce_group (", f.reduce_group,
             "); give one of them");
    if (f.enabled) fp8_run();
  }

  void fp8_run() {
    const Fp8Config& f = c_.fp8;
    if (c_.precision.param_dtype == DType::f16 || c_.precision.param_dtype == DType::f64)
      refuse("fp8.enabled needs precision.param_dtype bf16 or fp32, not ", c_.precision.param_dtype);
    const int64_t rows = c_.training.micro_batch_size * c_.training.seq_len;
    if (rows % 16)
      refuse("fp8.enabled: training.micro_batch_size times training.seq_len (", rows,
             " tokens) is not a multiple of 16, "
             "which FP8 products need");
    if (f.fallback && (c_.log.fp8_every == 0 || c_.checkpoint.dir->empty()))
      refuse("fp8.fallback needs ", c_.log.fp8_every == 0 ? "log.fp8_every: steps between measurements"
                                                          : "checkpoint.dir: a layer changes through a checkpoint");
    if (f.bf16_first_layers + f.bf16_last_layers >= c_.model.num_layers)
      refuse("fp8.bf16_first_layers (", f.bf16_first_layers, ") and fp8.bf16_last_layers (", f.bf16_last_layers,
             ") leave none of the ", c_.model.num_layers, " blocks in FP8; set fp8.enabled to false instead");
  }

  void system() {
    const ParallelConfig& p = c_.parallel;
    if (p.expert_parallel > 1 && c_.model.num_experts == 0)
      refuse("parallel.expert_parallel (", p.expert_parallel, "): the model has no experts; set it to 1");
    if (p.expert_parallel > 1 && c_.model.num_experts % p.expert_parallel)
      refuse("parallel.expert_parallel (", p.expert_parallel, ") does not divide the model's ", c_.model.num_experts,
             " experts");
    for (const Option<int64_t>* degree : {&p.shard_degree, &p.expert_parallel})
      if (ranks_ > 0 && *degree > 0 && ranks_ % *degree)
        refuse("parallel.", degree->name(), " (", *degree, ") does not divide the ", ranks_, " ranks of the run");
    if (c_.memory.recompute_blocks > c_.model.num_layers)
      refuse("memory.recompute_blocks (", c_.memory.recompute_blocks, ") is more than the model's ",
             c_.model.num_layers, " blocks");
  }

  const RunConfig& c_;
  const int64_t ranks_;
};

}  // namespace

void validate(const RunConfig& config, int64_t ranks) { Checks(config, ranks).all(); }

std::vector<std::string> warnings_of(const RunConfig& c, int64_t ranks) {
  std::vector<std::string> lines;
  const auto unused = [&](bool is, const char* path, const OptionBase& option, const auto&... why) {
    if (is) lines.push_back(concat(path, option.name(), " (", option.text(), ") is not used: ", why...));
  };
  const TrainingConfig& t = c.training;
  const ScheduleConfig& s = c.schedule;
  unused(t.steps > 0 && t.tokens > 0 && t.steps != (t.tokens - 1) / tokens_per_step(c) + 1, "training.", t.tokens,
         "training.steps (", t.steps, ") goes before it");
  unused(s.warmup_steps > 0 && s.warmup_tokens > 0, "schedule.", s.warmup_tokens, "schedule.warmup_steps (",
         s.warmup_steps, ") goes before it");
  unused(s.decay_steps > 0 && s.kind != ScheduleKind::wsd, "schedule.", s.decay_steps, "schedule.kind is ", s.kind);
  unused(s.decay_fraction != ScheduleConfig().decay_fraction && s.kind != ScheduleKind::wsd, "schedule.",
         s.decay_fraction, "schedule.kind is ", s.kind);
  unused(s.decay_fraction != ScheduleConfig().decay_fraction && s.kind == ScheduleKind::wsd && s.decay_steps > 0,
         "schedule.", s.decay_fraction, "schedule.decay_steps (", s.decay_steps, ") goes before it");
  unused(s.min_lr != s.lr / 10 && s.kind == ScheduleKind::constant, "schedule.", s.min_lr, "schedule.kind is ", s.kind);
  unused(t.eval_every > 0 && t.eval_sequences == 0, "training.", t.eval_every, "training.eval_sequences is 0");
  unused(t.eval_every > 0 && t.eval_sequences > 0 && c.data.validation->empty() && c.data.validation_fraction == 0,
         "training.", t.eval_every,
         "there is nothing to evaluate on; give data.validation or data.validation_fraction");
  unused(c.data.validation_fraction > 0 && !c.data.validation->empty(), "data.", c.data.validation_fraction,
         "data.validation goes before it");
  unused(*c.precision.loss_scale != *PrecisionConfig().loss_scale && loss_scaling(c.precision) == LossScaling::none,
         "precision.", c.precision.loss_scale, "precision.loss_scaling is ", c.precision.loss_scaling,
         ", and precision.param_dtype ", c.precision.param_dtype);
  unused(c.precision.loss_scale_growth_every != *PrecisionConfig().loss_scale_growth_every &&
             loss_scaling(c.precision) != LossScaling::dynamic,
         "precision.", c.precision.loss_scale_growth_every, "precision.loss_scaling is ", c.precision.loss_scaling,
         ", and precision.param_dtype ", c.precision.param_dtype);
  unused(c.parallel.shard_degree > 0 && c.parallel.zero_stage == 0, "parallel.", c.parallel.shard_degree,
         "parallel.zero_stage is 0");
  unused(c.parallel.prefetch != *ParallelConfig().prefetch && c.parallel.zero_stage < 3, "parallel.",
         c.parallel.prefetch, "parallel.zero_stage is ", c.parallel.zero_stage);
  unused(c.parallel.expert_buffer != *ParallelConfig().expert_buffer && c.parallel.expert_parallel == 1, "parallel.",
         c.parallel.expert_buffer, "parallel.expert_parallel is 1");
  const ModelConfig& m = c.model;
  for (const auto& [given, name] : {std::pair{m.router_aux_loss_per_layer, "router_aux_loss_per_layer"},
                                    {m.router_aux_loss_per_rank, "router_aux_loss_per_rank"}})
    if (given && m.router_aux_loss_coef == 0)
      lines.push_back(concat("model.", name, " (true) is not used: model.router_aux_loss_coef is 0"));
  const Fp8Config& f = c.fp8;
  Fp8Config usual;
  const bool no_history = f.enabled && f.recipe == Fp8Recipe::current && f.weight_scaling == WeightScaling::current;
  for (const OptionBase* option :
       std::initializer_list<const OptionBase*>{&f.amax_history_len, &f.amax_compute_algo, &f.interval})
    unused(no_history && option->text() != usual.find(option->name())->text(), "fp8.", *option, "fp8.recipe is ",
           f.recipe);
  unused(f.preset != Fp8Preset::none && !f.enabled, "fp8.", f.preset, "fp8.enabled is false");
  unused(c.log.fp8_every > 0 && !f.enabled, "log.", c.log.fp8_every, "fp8.enabled is false");
  for (const Option<double>* alarm : {&f.alarm_saturated, &f.alarm_flushed})
    unused(f.enabled && c.log.fp8_every == 0 && alarm->text() != usual.find(alarm->name())->text(), "fp8.", *alarm,
           "log.fp8_every is 0");
  unused(c.fp8.fallback && !c.fp8.enabled, "fp8.", c.fp8.fallback, "fp8.enabled is false");
  unused(f.enabled && !f.fallback && f.fallback_after != *usual.fallback_after, "fp8.", f.fallback_after,
         "fp8.fallback is false");
  // A rank may be the only one of the group that it shares maxima in.
  const int64_t degree = shard_degree(c, ranks);
  const bool alone = f.enabled && ranks > 1;
  unused(alone && f.reduce_group == ReduceGroup::shard && degree == 1, "fp8.", f.reduce_group,
         c.parallel.zero_stage == 0 ? "parallel.zero_stage is 0" : "parallel.shard_degree is 1",
         ", so that each rank has scales of its own, as with none");
  unused(alone && f.reduce_group == ReduceGroup::replica && degree == ranks, "fp8.", f.reduce_group, "the ", ranks,
         " ranks of the run are one sharding group, so that each rank has scales of its own, as with none");

  const int64_t total = total_steps(c), warmup = warmup_steps(s, tokens_per_step(c));  // short runs try things out
  const int64_t decay = s.kind == ScheduleKind::wsd ? decay_steps(s, total) : 0;
  if (total > 0 && warmup > total)
    lines.push_back(concat("the run of ", total, " steps ends within its warm-up of ", warmup, " (",
                           s.warmup_steps > 0 ? "schedule.warmup_steps" : "schedule.warmup_tokens",
                           "): the learning rate never reaches schedule.lr"));
  else if (total > 0 && decay > 0 && warmup + decay > total)
    lines.push_back(
        concat("warm-up (", warmup, " steps) and decay (schedule.",
               s.decay_steps > 0 ? concat("decay_steps: ", decay) : concat("decay_fraction: ", decay, " steps"),
               ") exceed the ", total, " steps of the run: the decay is shorter"));
  return lines;
}

void require_training(const RunConfig& config) {
  if (config.data.train->empty())
    bad_input(config.where, ": data.train is missing; give the token files that `octet tokenize` made");
  if (total_steps(config) == 0)
    bad_input(config.where, ": training.steps or training.tokens is missing; give the length of the run");
}

}  // namespace octet
