#pragma once
// Number formats of a run: storage types, loss scaling, and the FP8 recipe. The FP8 names are those of Transformer
// Engine's DelayedScaling; Accelerate's TERecipeKwargs and SageMaker SMP's names are accepted as aliases.
#include "base/options.h"
#include "tensor/tensor.h"

namespace octet {

inline std::vector<Named<DType>> wide_types() {  // fp64: for tests of derivatives, on the CPU
  return {{"fp32", DType::f32},
          {"bf16", DType::bf16},
          {"fp64", DType::f64, false},
          {"float32", DType::f32, false},
          {"bfloat16", DType::bf16, false}};
}
inline std::vector<Named<DType>> half_types() {
  std::vector<Named<DType>> names = wide_types();
  names.insert(names.begin() + 2, {"fp16", DType::f16});
  names.push_back({"float16", DType::f16, false});
  return names;
}

enum class LossScaling { automatic, none, fixed, dynamic };

struct PrecisionConfig : Section {
  PrecisionConfig() : Section("precision") {}
  Choice<DType> param_dtype{this, "param_dtype", DType::bf16,
                            "type of weights in matrix products and of activations; fp16: on the CPU only",
                            half_types()};
  Choice<DType> grad_dtype{this, "grad_dtype", DType::f32, "type in which gradients are accumulated over micro-batches",
                           wide_types()};
  Choice<DType> reduce_dtype{this, "reduce_dtype", DType::f32,
                             "type in which gradients are reduced over ranks (bf16 where grad_dtype is)", wide_types()};
  Choice<DType> buffer_dtype{this, "buffer_dtype", DType::f32, "type that the rotary tables are rounded to",
                             half_types()};
  Choice<DType> master_dtype{this, "master_dtype", DType::f32,
                             "type of the master weights; bf16 is rounded stochastically", wide_types()};
  Choice<DType> moment_dtype{this, "moment_dtype", DType::f32,
                             "type of the optimizer's moments; bf16 is rounded stochastically", wide_types()};
  Choice<LossScaling> loss_scaling{this,
                                   "loss_scaling",
                                   LossScaling::automatic,
                                   "keeps small gradients from vanishing; auto: dynamic with fp16, else none",
                                   {{"auto", LossScaling::automatic},
                                    {"none", LossScaling::none},
                                    {"static", LossScaling::fixed},
                                    {"dynamic", LossScaling::dynamic}}};
  Option<double> loss_scale{this, "loss_scale", 65536, "the static scale, or the initial dynamic one", more_than(0)};
  Option<int64_t> loss_scale_growth_every{this,        "loss_scale_growth_every",
                                          2000,        "good steps after which a dynamic scale doubles",
                                          at_least(1), Aliases{"growth_interval"}};
};

LossScaling loss_scaling(const PrecisionConfig& precision);  // with auto decided
float first_loss_scale(const PrecisionConfig& precision);    // 1 without loss scaling

enum class Fp8Preset { none, smp, te };
enum class Fp8Recipe { delayed, current };
enum class Fp8Format { hybrid, e4m3, e5m2 };  // e5m2: refused with the reason
enum class AmaxAlgo { max, most_recent };
enum class ReduceGroup { world, shard, replica, none };
enum class UpdateEvery { microbatch, step };
enum class ColdStart { current, one };
enum class WeightScaling { current, delayed };
enum class GatherType { fp8, bf16 };

struct Fp8Config : Section {
  Fp8Config() : Section("fp8") {}
  Option<bool> enabled{this, "enabled", false, "run the linear layers of the transformer blocks in FP8"};
  Choice<Fp8Preset> preset{this,
                           "preset",
                           Fp8Preset::none,
                           "defaults of the other fp8 keys: smp (SageMaker SMP v2), te (Transformer Engine)",
                           {{"none", Fp8Preset::none}, {"smp", Fp8Preset::smp}, {"te", Fp8Preset::te}}};
  Choice<Fp8Recipe> recipe{this,
                           "recipe",
                           Fp8Recipe::delayed,
                           "scales from past maxima (delayed) or from the tensor itself (current)",
                           {{"delayed", Fp8Recipe::delayed}, {"current", Fp8Recipe::current}}};
  Choice<Fp8Format> format{this,
                           "format",
                           Fp8Format::hybrid,
                           "HYBRID: E4M3 forward, E5M2 gradients; E4M3: for both",
                           {{"HYBRID", Fp8Format::hybrid}, {"E4M3", Fp8Format::e4m3}, {"E5M2", Fp8Format::e5m2, false}},
                           Aliases{"fp8_format"}};
  Option<int64_t> margin{this,
                         "margin",
                         0,
                         "headroom: scales are 2^-margin times the largest possible",
                         between(0, 32),
                         Aliases{"fp8_margin"}};
  Option<int64_t> interval{this, "interval", 1, "updates between new scales", at_least(1), Aliases{"fp8_interval"}};
  Option<int64_t> amax_history_len{this,
                                   "amax_history_len",
                                   32,
                                   "past maxima kept of each tensor",
                                   between(1, 65536),
                                   Aliases{"fp8_amax_history_len"}};
  Choice<AmaxAlgo> amax_compute_algo{this,
                                     "amax_compute_algo",
                                     AmaxAlgo::max,
                                     "the maximum of the history, or its newest value",
                                     {{"max", AmaxAlgo::max}, {"most_recent", AmaxAlgo::most_recent}},
                                     Aliases{"fp8_amax_compute_algo"}};
  Option<bool> reduce_amax{this, "reduce_amax", true, "ranks share maxima; false means reduce_group none"};
  Choice<ReduceGroup> reduce_group{this,
                                   "reduce_group",
                                   ReduceGroup::world,
                                   "ranks that share maxima of activations and gradients",
                                   {{"world", ReduceGroup::world},
                                    {"shard", ReduceGroup::shard},
                                    {"replica", ReduceGroup::replica},
                                    {"none", ReduceGroup::none}}};
  Choice<UpdateEvery> update_every{this,
                                   "update_every",
                                   UpdateEvery::microbatch,
                                   "when histories advance",
                                   {{"microbatch", UpdateEvery::microbatch}, {"step", UpdateEvery::step}}};
  Choice<ColdStart> cold_start{this,
                               "cold_start",
                               ColdStart::current,
                               "scale of a tensor without history: measured, or 1",
                               {{"current", ColdStart::current}, {"one", ColdStart::one}}};
  Choice<WeightScaling> weight_scaling{this,
                                       "weight_scaling",
                                       WeightScaling::current,
                                       "scales of weights: exact after each update, or delayed",
                                       {{"current", WeightScaling::current}, {"delayed", WeightScaling::delayed}}};
  Option<bool> te_compat{this, "te_compat", false,
                         "Transformer Engine's update rule: non-finite maxima enter histories"};
  Option<std::array<bool, 3>> override_linear_precision{this,
                                                        "override_linear_precision",
                                                        {false, false, false},
                                                        "[fprop, dgrad, wgrad]: true keeps that product in bf16"};
  Option<std::array<bool, 3>> fast_accum{
      this, "fast_accum", {true, false, false}, "[fprop, dgrad, wgrad]: true accumulates with fewer bits, faster"};
  Option<int64_t> bf16_first_layers{this, "bf16_first_layers", 0, "number of first blocks that stay in bf16",
                                    between(0, 10000)};
  Option<int64_t> bf16_last_layers{this, "bf16_last_layers", 0, "number of last blocks that stay in bf16",
                                   between(0, 10000)};
  Option<std::vector<std::string>> exclude{
      this, "exclude", {"lm_head", "embed*", "*.gate", "*.router"}, "layers that stay in bf16, as names with * and ?"};
  Option<bool> eval{this, "eval", false, "evaluate in FP8 (false: with bf16 weights)",
                    Aliases{"use_autocast_during_eval"}};
  Choice<GatherType> all_gather{this,
                                "all_gather",
                                GatherType::fp8,
                                "type in which sharded weights are gathered",
                                {{"fp8", GatherType::fp8}, {"bf16", GatherType::bf16}}};
  Option<bool> moe_per_expert_scales{this, "moe_per_expert_scales", false,
                                     "separate activation scales for each expert (false: one for the layer)"};
  Option<bool> power_of_2_scales{this, "power_of_2_scales", false, "round scales down to powers of two"};
  Option<double> alarm_saturated{this, "alarm_saturated", 0.01,
                                 "log an alarm when this share of a tensor's values saturates (0: never)",
                                 between(0, 1)};
  Option<double> alarm_flushed{this, "alarm_flushed", 0.5,
                               "log an alarm when this share of a tensor's values becomes zero (0: never)",
                               between(0, 1)};
  Option<bool> fallback{this, "fallback", false, "a layer with alarms runs in bf16 for the rest of the run"};
  Option<int64_t> fallback_after{this, "fallback_after", 2, "measurements in a row with an alarm before the fallback",
                                 at_least(1)};
  // Accepted as false, so that other programs' recipes can be pasted; true is refused with the reason.
  Option<bool> fp8_dpa{this, "fp8_dpa", false, "attention in FP8: not supported", Hidden{}};
  Option<bool> fp8_mha{this, "fp8_mha", false, "FP8 between attention and projections: not supported", Hidden{}};
  Option<bool> use_mxfp8_block_scaling{this, "use_mxfp8_block_scaling", false, "block scaling: not supported",
                                       Hidden{}};
};

}  // namespace octet
