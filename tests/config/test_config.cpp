// The config of a run: files, command lines, presets, cross-checks, and that what is printed reads back the same.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/json.h"
#include "config/config.h"
#include "config/globs.h"
#include "config/refusal.h"

namespace octet {
namespace {

RunConfig tiny(const std::vector<std::string>& overrides = {}) {
  return parse_config(R"({"model": {"preset": "tiny-llama"}, "training": {"steps": 100}})", "run.json", overrides);
}
std::string refusal_of(const std::vector<std::string>& overrides, int64_t ranks = 0) {
  return refusal([&] { validate(tiny(overrides), ranks); });
}
std::string refusal_of_text(const char* text) {
  return refusal([&] { parse_config(text, "run.json"); });
}

TEST(Config, TheFilesThatComeWithTheProgramLoadAndReadBack) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(CONFIGS)) {
    if (entry.path().extension() != ".json") continue;
    names.insert(entry.path().stem());
    const RunConfig config = load_config(entry.path());
    require_training(config);
    EXPECT_EQ(resolved(parse_config(resolved(config).dump(), "again")), resolved(config)) << entry.path();
  }
  for (const char* name : {"tiny_llama", "llama_124m", "llama_1b", "llama2_7b", "llama2_13b", "llama2_70b"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(Config, BenchmarkConfigsTake131072TokensAStep) {
  for (const char* name : {"llama_124m", "llama_1b", "llama2_7b", "llama2_13b", "llama2_70b"}) {
    const RunConfig config = load_config(std::string(CONFIGS) + "/" + name + ".json");
    EXPECT_EQ(tokens_per_step(config), 131072) << name;
    EXPECT_FALSE(config.fp8.enabled) << name;
  }
}

TEST(Config, TheCommandLineChangesTheFileAndTheLastChangeWins) {
  const RunConfig c =
      tiny({"training.steps=7", "training.steps=9", "schedule.kind=wsd", "data.train=[\"a\", \"b\"]",
            "data.validation=c", "checkpoint.dir=12", "device=cpu", "model.num_hidden_layers=3", "log.file=a=b"});
  EXPECT_EQ(c.training.steps, 9);
  EXPECT_EQ(c.schedule.kind, ScheduleKind::wsd);
  EXPECT_EQ(c.data.train->size(), 2u);
  EXPECT_EQ(*c.data.validation, std::vector<std::string>{"c"});
  EXPECT_EQ(*c.checkpoint.dir, "12");
  EXPECT_EQ(c.device, DeviceKind::cpu);
  EXPECT_EQ(c.model.num_layers, 3);
  EXPECT_EQ(*c.log.file, "a=b");
  EXPECT_EQ(tiny({"model={\"preset\": \"llama-1b\"}"}).model.hidden_size, 2048);
}

TEST(Config, DefaultsThatDependOnOthersAreFilledIn) {
  const RunConfig c = tiny({"schedule.lr=0.01", "precision.param_dtype=fp64"});
  EXPECT_EQ(c.training.seq_len, 256);
  EXPECT_DOUBLE_EQ(c.schedule.min_lr, 1e-3);
  EXPECT_EQ(c.precision.master_dtype, DType::f64);
  EXPECT_EQ(c.precision.reduce_dtype, DType::f64);
  EXPECT_EQ(loss_scaling(c.precision), LossScaling::none);
  EXPECT_EQ(loss_scaling(tiny({"precision.param_dtype=fp16"}).precision), LossScaling::dynamic);
  EXPECT_EQ(total_steps(tiny({"training.steps=0", "training.tokens=8193"})), 2);
  EXPECT_EQ(total_steps(tiny({"training.tokens=8193"})), 100);
  EXPECT_EQ(micro_steps(tiny({"training.micro_batch_size=2"}), 4), 4);
  EXPECT_EQ(shard_degree(tiny(), 4), 4);
  EXPECT_EQ(shard_degree(tiny({"parallel.shard_degree=2"}), 4), 2);
  EXPECT_EQ(shard_degree(tiny({"parallel.shard_degree=2", "parallel.zero_stage=0"}), 4), 1);
}

TEST(Config, ResolvedConfigsReadBackTheSame) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {},
           {"fp8.enabled=true", "fp8.preset=smp", "memory.poison=true", "training.seq_len=0"},
           {"fp8.reduce_amax=false", "optimizer.eps=1e-15", "schedule.lr=0.1", "data.weights=[0.3]", "data.train=x"},
           {"precision.param_dtype=fp64"}}) {
    const RunConfig config = tiny(overrides);
    const RunConfig again = parse_config(resolved(config).dump(), "again");
    EXPECT_EQ(resolved(again), resolved(config));
    EXPECT_EQ(again.model, config.model);
  }
}

TEST(Config, ResolvedHoldsEveryOptionThatIsNotHidden) {
  const json document = resolved(tiny());
  for (const OptionLine& line : all_options()) {
    const size_t dot = line.path.find('.');
    const std::string section = line.path.substr(0, dot);
    if (line.hidden || section == "model") continue;
    const json& own = dot == std::string::npos ? document : document[section];
    EXPECT_TRUE(own.contains(dot == std::string::npos ? line.path : line.path.substr(dot + 1))) << line.path;
    EXPECT_FALSE(line.help.empty()) << line.path;
  }
}

TEST(Config, TheTableOfHelpHasEveryOptionOnceAndNoHiddenOne) {
  const std::string table = option_table();
  std::set<std::string> paths;
  for (const OptionLine& line : all_options()) {
    EXPECT_TRUE(paths.insert(line.path).second) << line.path;
    EXPECT_EQ(table.find("  " + line.path + " = ") != std::string::npos, !line.hidden) << line.path;
  }
  EXPECT_EQ(option_table("schedule").find("training."), std::string::npos);
  EXPECT_NE(option_table("schedule").find("cosine | linear | wsd | constant"), std::string::npos);
  EXPECT_NE(table.find("  model.model_type = \"\"\n"), std::string::npos);  // it must be given
}

TEST(Config, PresetsGiveTheirValuesUnderWhatIsGiven) {
  const RunConfig smp = tiny({"fp8.preset=smp"}), te = tiny({"fp8.preset=te", "fp8.amax_history_len=16"});
  EXPECT_EQ(smp.fp8.amax_history_len, 32);
  EXPECT_EQ(smp.fp8.cold_start, ColdStart::one);
  EXPECT_EQ(smp.fp8.weight_scaling, WeightScaling::delayed);
  EXPECT_EQ(smp.fp8.all_gather, GatherType::bf16);
  EXPECT_TRUE(smp.fp8.te_compat);
  EXPECT_EQ(smp.precision.reduce_dtype, DType::bf16);
  EXPECT_EQ(te.fp8.amax_history_len, 16);
  EXPECT_EQ(tiny({"fp8.preset=te"}).fp8.amax_history_len, 1024);
  EXPECT_EQ(te.precision.reduce_dtype, DType::f32);
  EXPECT_EQ(tiny({"precision.reduce_dtype=fp32", "fp8.preset=smp"}).precision.reduce_dtype, DType::f32);
  EXPECT_EQ(tiny().fp8.cold_start, ColdStart::current);
}

TEST(Config, NamesOfOtherProgramsRecipesAreAccepted) {
  const Fp8Config fp8 = parse_config(R"({"model": {"preset": "tiny-llama"}, "fp8": {"fp8_format": "E4M3", "margin": 1,
    "interval": 2, "fp8_amax_history_len": 8, "fp8_amax_compute_algo": "most_recent", "use_autocast_during_eval": true,
    "override_linear_precision": [false, false, true], "use_mxfp8_block_scaling": false, "fp8_dpa": false}})",
                                     "run.json")
                            .fp8;
  EXPECT_EQ(fp8.format, Fp8Format::e4m3);
  EXPECT_EQ(fp8.amax_history_len, 8);
  EXPECT_EQ(fp8.amax_compute_algo, AmaxAlgo::most_recent);
  EXPECT_TRUE(fp8.eval);
  EXPECT_TRUE((*fp8.override_linear_precision)[2]);
  EXPECT_EQ(tiny({"fp8.reduce_amax=false"}).fp8.reduce_group, ReduceGroup::none);
  EXPECT_FALSE(tiny({"fp8.reduce_group=none"}).fp8.reduce_amax);
}

TEST(Config, UnknownKeysAreRefusedWithASuggestion) {
  EXPECT_EQ(refusal_of_text(R"({"modle": {}})"), "run.json: modle: unknown section or option; did you mean model?");
  EXPECT_EQ(refusal_of_text(R"({"steps": 3})"),
            "run.json: steps: unknown section or option; did you mean training.steps?");
  EXPECT_EQ(refusal_of_text(R"({"training": {"lr": 3}})"),
            "run.json: training.lr: unknown option; did you mean schedule.lr?");
  EXPECT_EQ(refusal_of_text(R"({"training": {"steps": 3, "steps": 4}})"),
            "run.json: training.steps appears twice; keep one of them");
  EXPECT_EQ(refusal_of({"traning.steps=3"}),
            "command line: traning: unknown section or option; did you mean training?");
  EXPECT_EQ(refusal_of({"training.stpes=3"}),
            "command line: training.stpes: unknown option; did you mean training.steps?");
  EXPECT_EQ(refusal_of({"steps=3"}), "command line: steps: unknown section or option; did you mean training.steps?");
}

TEST(Config, BadValuesAreRefusedWithTheirPlace) {
  EXPECT_EQ(refusal_of({"training.steps=ten"}), R"(command line: training.steps: expected an integer, got "ten")");
  EXPECT_EQ(refusal_of({"training.steps"}),
            R"(command line: "training.steps": expected section.key=value, for example training.steps=100)");
  EXPECT_EQ(refusal_of({"device=cp"}),
            R"(command line: device: "cp" is not one of auto | cuda | cpu; did you mean cpu?)");
  EXPECT_EQ(refusal_of({"fp8.amax_history_len=0"}),
            "command line: fp8.amax_history_len: 0 is out of range; it must be between 1 and 65536");
  EXPECT_EQ(refusal_of({"fp8.margin=-1"}),  // every cast would saturate
            "command line: fp8.margin: -1 is out of range; it must be between 0 and 32");
  EXPECT_EQ(refusal_of({"fp8.amax_compute_algo=mean"}),
            R"(command line: fp8.amax_compute_algo: "mean" is not one of max | most_recent)");
  EXPECT_EQ(refusal_of({"training.global_batch_size=1000000000"}),  // planning it had no end in sight
            "command line: training.global_batch_size: 1000000000 is out of range; it must be between 1 and 1048576");
  EXPECT_EQ(refusal_of({"parallel.zero_stage=4"}),
            "command line: parallel.zero_stage: 4 is out of range; it must be between 0 and 3");
  EXPECT_EQ(refusal_of_text("[]"), "run.json: expected an object of sections, got []");
  EXPECT_EQ(refusal_of_text(R"({"training": 3})"), "run.json: training: expected an object of options, got 3");
  EXPECT_EQ(refusal_of_text("{}").find("run.json: model is missing; give"), 0u);
  EXPECT_EQ(refusal_of_text("{\n\"training\": {,}}").find("run.json:2:14: syntax error"), 0u);
  EXPECT_NE(refusal([] { load_config("absent.json"); }).find("absent.json"), std::string::npos);
}

TEST(Config, OptionsThatDoNotFitTogetherAreRefused) {
  const auto expect = [](const std::vector<std::string>& overrides, const std::string& message, int64_t ranks = 0) {
    const std::string refused = refusal_of(overrides, ranks);
    EXPECT_EQ(refused.find("run.json: " + message), 0u) << message << "\n" << refused;
  };
  expect({"training.seq_len=257"},
         "training.seq_len (257) is longer than the model's range: "
         "model.max_position_embeddings is 256");
  expect({"training.micro_batch_size=3"},
         "training.global_batch_size (32) is not a multiple of training.micro_batch_size (3)");
  expect({"training.micro_batch_size=8"},
         "training.global_batch_size (32) is not a multiple of training.micro_batch_size (8) times 3 ranks", 3);
  expect({"schedule.min_lr=1"}, "schedule.min_lr (1) is above schedule.lr (0.0003)");
  expect({"data.train=[\"a\",\"b\"]", "data.weights=[1]"}, "data.weights has 1 entries for 2 of data.train");
  expect({"precision.master_dtype=fp64"}, "precision.master_dtype: fp64 needs precision.param_dtype fp64");
  expect({"fp8.format=E5M2"}, "fp8.format: \"E5M2\" is not supported: no hardware multiplies E5M2 by E5M2; use HYBRID");
  expect({"fp8.fp8_dpa=true"}, "fp8.fp8_dpa: attention in FP8 is not supported: on Hopper it is slower");
  expect({"fp8.fp8_mha=true"}, "fp8.fp8_mha: attention in FP8 is not supported");
  expect({"fp8.use_mxfp8_block_scaling=true"}, "fp8.use_mxfp8_block_scaling: block scaling needs Blackwell");
  expect({"fp8.reduce_amax=false", "fp8.reduce_group=world"},
         "fp8.reduce_amax (false) contradicts fp8.reduce_group (world); give one of them");
  expect({"fp8.enabled=true", "precision.param_dtype=fp16"},
         "fp8.enabled needs precision.param_dtype bf16 or fp32, not fp16");
  expect({"fp8.enabled=true", "training.seq_len=250"},
         "fp8.enabled: training.micro_batch_size times training.seq_len (250 tokens) is not a multiple of 16");
  expect({"fp8.enabled=true", "fp8.bf16_first_layers=2", "fp8.bf16_last_layers=2"},
         "fp8.bf16_first_layers (2) and fp8.bf16_last_layers (2) leave none of the 4 blocks in FP8");
  expect({"fp8.moe_per_expert_scales=true"}, "fp8.moe_per_expert_scales: the model has no experts");
  expect({"parallel.expert_parallel=2"}, "parallel.expert_parallel (2): the model has no experts");
  expect({"parallel.shard_degree=3"}, "parallel.shard_degree (3) does not divide the 4 ranks of the run", 4);
  expect({"memory.recompute_blocks=5"}, "memory.recompute_blocks (5) is more than the model's 4 blocks");
  EXPECT_EQ(tiny({"memory.recompute_blocks=-1"}).memory.recompute_blocks, 4);  // all, however many there are
  EXPECT_EQ(refusal_of({"fp8.enabled=true", "training.micro_batch_size=8"}, 4), "");
}

TEST(Config, ARunNeedsDataAndALength) {
  EXPECT_EQ(refusal([] { require_training(tiny()); }).find("run.json: data.train is missing"), 0u);
  EXPECT_EQ(refusal([] {
              require_training(tiny({"data.train=a", "training.steps=0"}));
            }).find("run.json: training.steps or training.tokens is missing"),
            0u);
  EXPECT_EQ(refusal([] { require_training(tiny({"data.train=a"})); }), "");
}

TEST(Config, WhatIsNotUsedIsSaid) {
  const auto expect = [](const std::vector<std::string>& overrides, const std::string& line, int64_t ranks = 0) {
    const std::vector<std::string> said = warnings_of(tiny(overrides), ranks);
    EXPECT_EQ(said, line.empty() ? std::vector<std::string>{} : std::vector{line}) << overrides[0];
    const RunConfig again = parse_config(resolved(tiny(overrides)).dump(), "again");  // where every option is given
    EXPECT_EQ(warnings_of(again, ranks), said) << overrides[0];
  };
  expect({"training.tokens=100000000"}, "training.tokens (100000000) is not used: training.steps (100) goes before it");
  expect({"training.tokens=100000000", "training.steps=0"}, "");
  expect({"training.tokens=819200"}, "");  // the same: 32 sequences of 256 tokens a step
  expect({"schedule.warmup_tokens=9000", "schedule.warmup_steps=2"},
         "schedule.warmup_tokens (9000) is not used: schedule.warmup_steps (2) goes before it");
  expect({"schedule.decay_steps=3"}, "schedule.decay_steps (3) is not used: schedule.kind is cosine");
  expect({"schedule.decay_steps=3", "schedule.kind=wsd"}, "");
  expect({"schedule.decay_fraction=0.3"}, "schedule.decay_fraction (0.3) is not used: schedule.kind is cosine");
  expect({"schedule.decay_fraction=0.3", "schedule.kind=wsd"}, "");
  expect({"schedule.decay_fraction=0.3", "schedule.decay_steps=3", "schedule.kind=wsd"},
         "schedule.decay_fraction (0.3) is not used: schedule.decay_steps (3) goes before it");
  expect({"schedule.warmup_steps=101"},
         "the run of 100 steps ends within its warm-up of 101 (schedule.warmup_steps): the learning rate never reaches "
         "schedule.lr");
  expect({"schedule.warmup_tokens=1e9"},
         "the run of 100 steps ends within its warm-up of 122071 (schedule.warmup_tokens): the learning rate never "
         "reaches schedule.lr");
  expect(
      {"schedule.kind=wsd", "schedule.warmup_steps=50", "schedule.decay_steps=51"},
      "warm-up (50 steps) and decay (schedule.decay_steps: 51) exceed the 100 steps of the run: the decay is shorter");
  expect(
      {"schedule.kind=wsd", "schedule.warmup_steps=50", "schedule.decay_fraction=0.6"},
      "warm-up (50 steps) and decay (schedule.decay_fraction: 60 steps) exceed the 100 steps of the run: the decay is "
      "shorter");
  expect({"schedule.warmup_steps=100"}, "");
  expect({"schedule.min_lr=0", "schedule.kind=constant"}, "schedule.min_lr (0) is not used: schedule.kind is constant");
  expect({"schedule.lr=0.7", "schedule.kind=constant"}, "");
  expect({"training.eval_every=5"},
         "training.eval_every (5) is not used: there is nothing to evaluate on; give data.validation or "
         "data.validation_fraction");
  expect({"training.eval_every=5", "training.eval_sequences=0"},
         "training.eval_every (5) is not used: training.eval_sequences is 0");
  expect({"training.eval_every=5", "data.validation_fraction=0.1"}, "");
  expect({"data.validation_fraction=0.1", "data.validation=a"},
         "data.validation_fraction (0.1) is not used: data.validation goes before it");
  expect({"precision.loss_scale=8"},
         "precision.loss_scale (8) is not used: precision.loss_scaling is auto, and precision.param_dtype bf16");
  expect({"precision.loss_scale=8", "precision.loss_scaling=static"}, "");
  expect({"precision.loss_scale_growth_every=8", "precision.loss_scaling=static"},
         "precision.loss_scale_growth_every (8) is not used: precision.loss_scaling is static, and "
         "precision.param_dtype bf16");
  expect({"precision.loss_scale_growth_every=8", "precision.param_dtype=fp16"}, "");
  expect({"parallel.shard_degree=2", "parallel.zero_stage=0"},
         "parallel.shard_degree (2) is not used: parallel.zero_stage is 0");
  expect({"parallel.prefetch=2", "parallel.zero_stage=2"},
         "parallel.prefetch (2) is not used: parallel.zero_stage is 2");
  expect({"parallel.prefetch=2", "parallel.zero_stage=3"}, "");
  expect({"parallel.expert_buffer=4", "model.preset=mixtral-8x7b"},
         "parallel.expert_buffer (4) is not used: parallel.expert_parallel is 1");
  expect({"parallel.expert_buffer=4", "parallel.expert_parallel=2", "model.preset=mixtral-8x7b"}, "");
  for (const std::string name : {"model.router_aux_loss_per_layer", "model.router_aux_loss_per_rank"}) {
    expect({name + "=true", "model.preset=mixtral-8x7b", "model.router_aux_loss_coef=0"},
           name + " (true) is not used: model.router_aux_loss_coef is 0");
    expect({name + "=true", "model.preset=mixtral-8x7b"}, "");
  }
  expect({"fp8.fallback=true"}, "fp8.fallback (true) is not used: fp8.enabled is false");
  expect({"log.fp8_every=5"}, "log.fp8_every (5) is not used: fp8.enabled is false");
  expect({"log.fp8_every=5", "fp8.enabled=true", "fp8.alarm_flushed=0.2"}, "");
  expect({"fp8.enabled=true", "fp8.alarm_flushed=0.2"}, "fp8.alarm_flushed (0.2) is not used: log.fp8_every is 0");
  expect({"fp8.enabled=true", "fp8.fallback_after=3"}, "fp8.fallback_after (3) is not used: fp8.fallback is false");
  expect({"fp8.preset=te"}, "fp8.preset (te) is not used: fp8.enabled is false");
  expect({"fp8.preset=te", "fp8.enabled=true"}, "");
  expect({"fp8.enabled=true", "fp8.recipe=current", "fp8.amax_history_len=8"},
         "fp8.amax_history_len (8) is not used: fp8.recipe is current");
  const std::string own = ", so that each rank has scales of its own, as with none";
  const std::vector<std::string> shard{"fp8.enabled=true", "fp8.reduce_group=shard"},
      replica{"fp8.enabled=true", "fp8.reduce_group=replica"};
  const auto with = [](std::vector<std::string> overrides, const std::string& more) {
    overrides.push_back(more);
    return overrides;
  };
  expect(with(shard, "parallel.zero_stage=0"), "fp8.reduce_group (shard) is not used: parallel.zero_stage is 0" + own,
         4);
  expect(with(shard, "parallel.shard_degree=1"),
         "fp8.reduce_group (shard) is not used: parallel.shard_degree is 1" + own, 4);
  expect(replica, "fp8.reduce_group (replica) is not used: the 4 ranks of the run are one sharding group" + own, 4);
  expect(with(replica, "parallel.shard_degree=4"),
         "fp8.reduce_group (replica) is not used: the 4 ranks of the run are one sharding group" + own, 4);
  expect(shard, "", 4);
  expect(with(shard, "parallel.zero_stage=0"), "", 1);  // there is nobody to share with
  expect(with(replica, "parallel.zero_stage=0"), "", 4);
  expect(with(replica, "parallel.shard_degree=2"), "", 4);
  expect({"fp8.enabled=true", "fp8.recipe=current", "fp8.amax_history_len=8", "fp8.weight_scaling=delayed"}, "");
}

TEST(Config, PatternsThatNameNoLayerAreToldOf) {
  const std::vector<std::pair<std::string, Shape>> parameters{{"model.layers.0.mlp.down_proj.weight", {8, 8}}};
  const auto said = [&](const std::vector<std::string>& overrides) {
    return warnings_of(tiny(overrides).fp8, parameters);
  };
  EXPECT_EQ(said({"fp8.enabled=true"}), std::vector<std::string>{});  // the default is for several architectures
  EXPECT_EQ(
      said({"fp8.enabled=true", "fp8.exclude=[\"*.down_proj\", \"*.donw_proj\", \"lm_head\"]"}),
      std::vector<std::string>{"fp8.exclude: \"*.donw_proj\" names no layer of the model (octet plan lists them)"});
  EXPECT_EQ(said({"fp8.exclude=[\"*.donw_proj\"]"}), std::vector<std::string>{});
}

TEST(Config, Fp8HasTheDefaultsOfItsSpecification) {
  const RunConfig spec = parse_config(R"({"model": {"preset": "tiny-llama"}, "fp8": {
    "enabled": false, "recipe": "delayed", "format": "HYBRID", "margin": 0, "interval": 1,
    "amax_history_len": 32, "amax_compute_algo": "max", "reduce_amax": true, "update_every": "microbatch",
    "cold_start": "current", "weight_scaling": "current", "te_compat": false,
    "override_linear_precision": [false, false, false], "fast_accum": [true, false, false],
    "reduce_group": "world", "bf16_first_layers": 0, "bf16_last_layers": 0,
    "exclude": ["lm_head", "embed*", "*.gate", "*.router"], "eval": false,
    "all_gather": "fp8", "moe_per_expert_scales": false, "power_of_2_scales": false}})",
                                      "run.json");
  EXPECT_EQ(resolved(spec)["fp8"], resolved(tiny({"training.steps=0"}))["fp8"]);
  EXPECT_EQ(spec.precision.reduce_dtype, DType::f32);
}

}  // namespace
}  // namespace octet
