// Health of FP8: what saturates and what becomes zero is counted exactly and changes no bit of a run; ranks
// add up; a planted spike raises the alarm, names the tensor, and takes its layer out of FP8 for the rest of
// the run, resumes included.
#include <sys/mman.h>

#include <algorithm>
#include <fstream>

#include "base/files.h"
#include "base/json.h"
#include "cpu/fp8_layer.h"
#include "cpu/tiny_model.h"
#include "data/safetensors.h"
#include "data/scratch.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

Changes operator+(Changes a, const Changes& b) { return with(std::move(a), b); }

template <class Float8>
double value_of(uint8_t code) {
  Float8 f;
  f.bits = code;
  return float(f);
}

TEST(Fp8Health, CodesAreCountedExactly) {
  Lab lab;
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    const uint8_t top = format == DType::e4m3 ? 0x7e : 0x7b;
    for (const int64_t n : {1, 15, 16, 1000, 70001}) {
      const Tensor q = lab.empty(format, {n});
      uint32_t largest = 0, zeros = 0;
      uint64_t squares = 0xffff'ffff;
      for (int64_t i = 0; i < n; ++i) {
        const uint8_t code = uint8_t(random_bits(5, 5, uint64_t(i)));
        static_cast<uint8_t*>(q.data)[i] = code;
        largest += (code & 0x7f) == top;
        zeros += (code & 0x7f) == 0;
        const double v = format == DType::e4m3 ? value_of<e4m3>(code) / 448 : value_of<e5m2>(code) / 57344;
        if (std::abs(v) <= 1) squares += uint64_t(std::llround(std::ldexp(v * v, 30)));
      }
      const Tensor counts = lab.of<uint32_t>({7, 1, 2, 3, 0xffff'ffff, 0});  // counts are added
      count_codes(lab.stream(), counts, q);
      EXPECT_EQ(values(counts), (std::vector<double>{7. + double(n), 1. + largest, 2. + zeros, 3,
                                                     double(uint32_t(squares)), double(squares >> 32)}));
    }
  }
}

// 32 bits count no 2^32 codes, as 131072 tokens have them that are 57344 wide.
TEST(Fp8Health, OfVeryManyCodesTheFirstAreCounted) {
  Lab lab;
  constexpr int64_t n = (int64_t{1} << 32) + 8;
  void* zeros = mmap(nullptr, size_t(n), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(zeros, MAP_FAILED);
  const Tensor counts = lab.of<uint32_t>({0, 0, 0, 0, 0, 0});
  count_codes(lab.stream(), counts, {zeros, DType::e4m3, {n}});
  munmap(zeros, size_t(n));
  EXPECT_EQ(values(counts), (std::vector<double>{kMostCounted, 0, kMostCounted, 0, 0, 0}));
}

CastHealth health_of(Layer& layer, const std::string& name) {
  for (DelayedScaling* all : {&layer.scaling, &layer.params.weight_scales()}) {
    const auto casts = all->examine(layer.lab().stream());
    for (size_t i = 0; i < casts.size(); ++i)
      if (all->names()[i] == name) return casts[i];
  }
  throw Error(name);
}

TEST(Fp8Health, SaturatedAndFlushedValuesAreThoseOfTheCast) {
  Layer layer(layer_config({"log.fp8_every=1", "fp8.amax_history_len=4"}), 32, 32);
  Lab& lab = layer.lab();
  layer.set_weights(values(lab.normal(DType::f32, {32, 32})));
  const Tensor x = lab.normal(DType::f32, {16, 32}, 0), dy = lab.normal(DType::f32, {16, 32});
  for (int i = 0; i < 512; ++i) x.ptr<float>()[i] = i < 100 ? 0 : 1;
  x.ptr<float>()[511] = 2;
  layer.scaling.start_counting(lab.stream());
  layer.run(x, dy);
  CastHealth h = health_of(layer, "w.weight.x");  // cold: the scale is its own, nothing saturates
  EXPECT_EQ(h.scale, 224);
  EXPECT_EQ(h.amax, 2);
  EXPECT_EQ(h.elements, 512u);
  EXPECT_EQ(h.saturated, 0u);
  EXPECT_EQ(h.flushed, 0u);
  EXPECT_EQ(h.age, 0);
  EXPECT_NEAR(h.amax_over_rms(), 2 / std::sqrt((411 * 1. + 4.) / 512), 1e-6);  // 100 zeros, 411 ones, a two
  layer.scaling.stop_counting();
  layer.update();
  layer.run(x, dy), layer.update(), layer.run(lab.zeros(DType::f32, {16, 32}), dy),
      layer.update();  // zeros do not roll

  for (int i = 0; i < 30; ++i) x.ptr<float>()[i] = 1e-6f;  // 2.2e-4 once scaled: below half of 2^-9
  for (int i = 200; i < 207; ++i) x.ptr<float>()[i] = i % 2 ? 50 : -3;
  layer.scaling.start_counting(lab.stream());
  layer.run(x, dy);
  h = health_of(layer, "w.weight.x");
  EXPECT_EQ(h.saturated, 8u);  // the seven and the 2 of the end
  EXPECT_EQ(h.flushed, 30u);
  EXPECT_EQ(h.amax, 50);
  EXPECT_EQ(h.scale, 224);
  EXPECT_EQ(h.age, 1);
  EXPECT_FALSE(h.frozen);
  EXPECT_NEAR(h.saturated_share(), 8. / 512, 1e-12);
  layer.scaling.stop_counting();
  layer.run(dy, dy);
  EXPECT_EQ(health_of(layer, "w.weight.x").elements, 512u);  // nothing is counted outside

  layer.params.weight_scales().start_counting(lab.stream());
  layer.params.for_each(
      [&](const std::string&, Shape, const ParameterStore::Local& l) { l.master.ptr<float>()[5] = 1e-9f; });
  layer.params.publish(lab.stream(), ParameterStore::Masters::changed);
  h = health_of(layer, "w.weight");
  EXPECT_EQ(h.elements, 1024u);
  EXPECT_EQ(h.saturated, 0u);
  EXPECT_GE(h.flushed, 1u);
}

TEST(Fp8Health, TheMostPeakedTensorIsFoundOverAllRanks) {
  run_ranks(2, [](Host& host) {
    const double squares = host.rank() == 0 ? 12 : 4;
    HealthReport report{.names = {"flat", "peaked", "zeros"},
                        .casts = {{.amax = 1, .elements = 4, .squares = 4},
                                  {.amax = 2, .elements = 4, .squares = squares},
                                  {.amax = 0, .elements = 4, .squares = 0}}};
    share(report, host);
    EXPECT_NEAR(report.casts[1].amax_over_rms(), 2 / std::sqrt(16. / 8), 1e-12);
    EXPECT_EQ(report.casts[2].amax_over_rms(), 0);
    EXPECT_EQ(report.most_peaked(), 1);
    EXPECT_TRUE(has(report.summary(), "largest amax/rms 1.41 of peaked")) << report.summary();
    EXPECT_NEAR(report.to_json()["tensors"]["peaked"]["amax_over_rms"].get<double>(), std::sqrt(2.), 1e-12);
  });
}

// Of more codes than 32 bits count, some are: a share of none would be 0, and raise no alarm.
TEST(Fp8Health, CountsStopBeforeTheyWouldWrap) {
  Layer layer(layer_config({"log.fp8_every=1"}), 32, 32);
  DelayedScaling& scaling = layer.scaling;
  for (int again = 0; again < 2; ++again) {
    scaling.start_counting(layer.lab().stream());
    for (int round = 0; round < 3; ++round) EXPECT_TRUE(scaling.counts(0, 5 * kMostCounted)) << round;
    EXPECT_FALSE(scaling.counts(0, kMostCounted));
    EXPECT_TRUE(scaling.counts(0, kMostCounted - 1));
    EXPECT_FALSE(scaling.counts(0, 1));
    EXPECT_TRUE(scaling.counts(1, kMostCounted));
  }
  scaling.stop_counting();
  EXPECT_FALSE(scaling.counts(1, 1));
}

TEST(Fp8Health, AgeAndFrozenScales) {
  Layer layer(layer_config({"log.fp8_every=1", "fp8.amax_history_len=4", "fp8.te_compat=true"}), 32, 32);
  Lab& lab = layer.lab();
  layer.set_weights(values(lab.normal(DType::f32, {32, 32})));
  const auto run = [&](float amax) {
    Tensor x = lab.zeros(DType::f32, {16, 32});
    x.ptr<float>()[3] = amax;
    layer.run(x, x);
    layer.update();
    return health_of(layer, "w.weight.x");
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(i ? 1.f : 8.f).age, i + 1);
  EXPECT_EQ(run(1).age, 4);
  EXPECT_EQ(run(1).age, 1);  // the 8 has left the window; of equal maxima the newest counts
  EXPECT_FALSE(run(1).frozen);
  EXPECT_TRUE(run(INFINITY).frozen);
  for (int i = 0; i < 3; ++i) run(1);
  EXPECT_FALSE(run(1).frozen);
}

TEST(Fp8Health, ChangesNoBitOfARunAndAddsUpOverRanks) {
  const Changes fp8{"precision.param_dtype=bf16", "fp8.enabled=true", "fp8.amax_history_len=4"};
  for (const Changes& more : {Changes{}, Changes{"fp8.preset=smp"}, Changes{"fp8.recipe=current"}}) {
    const auto trained = [&](int every, int ranks) {
      std::pair<Bits, HealthReport> result;
      run_ranks(ranks, [&](Host& host) {
        const Threads one{1};
        TinyTrainer t(tiny_config(fp8 + more + Changes{concat("log.fp8_every=", every)}), host);
        t.run(3);
        t.step(tiny_samples(t.session.config));
        StepReport r = t.report(4);
        share(r.health, host);
        if (host.rank() == 0) result = {bits_of(t), r.health};
      });
      return result;
    };
    const auto [without, none] = trained(0, 1);
    const auto [with, health] = trained(2, 1);
    expect_same(without, with);
    EXPECT_TRUE(none.casts.empty());
    EXPECT_EQ(none.step, 0);
    EXPECT_EQ(health.step, 4);
    ASSERT_EQ(health.casts.size(), 24u);  // x, dy and w of four Linears in two blocks
    EXPECT_EQ(health.names[0], "model.layers.0.self_attn.q_proj.weight.x");
    EXPECT_EQ(health.casts[0].elements, 2u * 16 * 32);  // of the first micro-batch
    const HealthReport both = trained(2, 2).second;
    EXPECT_EQ(both.casts[0].elements, 2u * 2 * 16 * 32);
    for (size_t i = 0; i < 24; ++i) {
      EXPECT_LE(both.casts[i].flushed_share(), 0.5) << both.names[i];
      EXPECT_FALSE(both.casts[i].frozen);
      EXPECT_GT(both.casts[i].scale, 1);
    }
    if (more.empty() || !more[0].ends_with("smp")) {  // weights under current scaling
      for (size_t i = 16; i < 24; ++i) EXPECT_EQ(both.casts[i].saturated, 0u) << both.names[i];
    }
    EXPECT_TRUE(both.to_json()["tensors"].contains("model.layers.1.mlp.down_proj.weight.dy"));
    EXPECT_TRUE(has(both.summary(), "worst model.layers."));
  }
}

TEST(Fp8Health, RanksAddWhatTheyCountAndKeepTheWorst) {
  run_ranks(3, [](Host& host) {
    const uint32_t r = uint32_t(host.rank());
    HealthReport report{.step = 1, .names = {"a.x"}};
    report.casts = {{.scale = 2,
                     .amax = float(r + 1),
                     .elements = 100 + r,
                     .saturated = 10 + r,
                     .flushed = 1 + r,
                     .age = int64_t(5 - r),
                     .frozen = r == 1}};
    share(report, host);
    const CastHealth& h = report.casts[0];
    EXPECT_EQ(h.elements, 303u);
    EXPECT_EQ(h.saturated, 33u);
    EXPECT_EQ(h.flushed, 6u);
    EXPECT_EQ(h.amax, 3);
    EXPECT_EQ(h.age, 5);
    EXPECT_TRUE(h.frozen);
  });
}

TEST(Fp8Health, LayersHaveNamesThatExcludeThem) {
  EXPECT_EQ(layer_of("a.b.weight.x"), "a.b");
  EXPECT_EQ(layer_of("a.b.weight.dy"), "a.b");
  EXPECT_EQ(layer_of("a.b.weight"), "a.b");
  EXPECT_EQ(layer_of("m.experts.w1.x"), "m.experts.*.w1");
  EXPECT_EQ(layer_of("m.experts.3.w1.weight"), "m.experts.*.w1");
}

TEST(Fp8Health, AlarmsNameTensorFigureAndRemedyAndAsLongAsTheyLastTheyCount) {
  RunConfig config = layer_config({"fp8.alarm_saturated=0.1", "fp8.alarm_flushed=0.2", "fp8.fallback=true",
                                   "fp8.fallback_after=2", "log.fp8_every=1"});
  HealthReport calm{.step = 1, .names = {"a.weight.x", "b.weight"}, .casts = {{.elements = 100}, {.elements = 100}}};
  HealthReport bad = calm;
  bad.casts[0].saturated = 11;
  HealthReport flushed = calm;
  flushed.casts[1].flushed = 21;
  HealthReport at_the_limit = calm;
  at_the_limit.casts[0].saturated = 10;
  HealthWatch watch(config.fp8);
  EXPECT_TRUE(watch.alarms(calm).empty());
  EXPECT_TRUE(watch.alarms(at_the_limit).empty());
  const auto said = watch.alarms(bad);
  ASSERT_EQ(said.size(), 1u);
  for (const char* part : {"a.weight.x", "step 1", "11% of its values saturate", "above 10%", "fp8.amax_history_len",
                           "\"a\" in fp8.exclude"})
    EXPECT_TRUE(has(said[0], part)) << said[0];
  EXPECT_TRUE(watch.take_fallbacks().empty());
  watch.alarms(calm);  // not in a row
  watch.alarms(bad);
  EXPECT_TRUE(watch.take_fallbacks().empty());
  watch.alarms(bad);
  EXPECT_EQ(watch.take_fallbacks(), std::vector<std::string>{"a"});
  EXPECT_TRUE(watch.take_fallbacks().empty());
  EXPECT_TRUE(has(watch.alarms(flushed).at(0), "21% of its values become zero"));
  config.fp8.alarm_flushed.set(0);  // never
  EXPECT_TRUE(watch.alarms(flushed).empty());
  config.fp8.fallback.set(false);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(watch.alarms(bad).size(), 1u);
  EXPECT_TRUE(watch.take_fallbacks().empty());
}

TEST(Fp8Health, AFallbackNeedsMeasurementsAndACheckpoint) {
  const auto refused = [](const std::vector<std::string>& changes) {
    return error_of<InputError>([&] { layer_config(changes); });
  };
  EXPECT_TRUE(has(refused({"fp8.fallback=true"}), "fp8.fallback needs log.fp8_every"));
  EXPECT_TRUE(
      has(refused({"fp8.fallback=true", "log.fp8_every=5", "checkpoint.dir="}), "fp8.fallback needs checkpoint.dir"));
  layer_config({"fp8.fallback=true", "log.fp8_every=5"});
}

std::vector<json> records(const std::filesystem::path& file) {
  std::vector<json> all;
  std::istringstream lines(read_file(file));
  for (std::string line; std::getline(lines, line);) all.push_back(json::parse(line));
  return all;
}

TEST(Fp8Health, APlantedSpikeRaisesTheAlarmAndTheFallback) {
  for (const int ranks : {1, 2}) {
    Scratch folder;
    const auto data = token_file(folder / "train.tokens", 4000, 120);
    const auto run = [&](const Changes& more) {
      const RunConfig config = tiny_config(
          Changes{"precision.param_dtype=bf16", "fp8.enabled=true", "log.fp8_every=1", "fp8.fallback=true",
                  "fp8.fallback_after=1", "fp8.alarm_flushed=0", "fp8.alarm_saturated=0.3",
                  concat("data.train=[\"", data.string(), "\"]"), concat("checkpoint.dir=", (folder / "run").string()),
                  concat("log.file=", (folder / "log.jsonl").string()), "log.progress=false", "checkpoint.keep=0",
                  concat("checkpoint.every=", ranks == 2 ? 1 : 0)} +  // also where the step would be saved anyway
          more);
      testing::internal::CaptureStderr();
      TrainResult result;
      run_ranks(ranks, [&](Host& host) {
        const Threads one{1};
        const TrainResult mine =
            cpu::engine().train(config, host, planner_for(target_of(cpu::engine(), config), ranks));
        if (host.rank() == 0) result = mine;
      });
      return std::pair(result, testing::internal::GetCapturedStderr());
    };
    const auto [calm, quiet] = run({"training.stop_after=4"});
    EXPECT_EQ(quiet, "");
    const std::filesystem::path model = std::filesystem::path(calm.checkpoint) / "model.safetensors";
    const std::string layer = "model.layers.1.mlp.gate_proj", x = layer + ".weight.x";
    size_t offset = 0;
    std::vector<float> norm;
    {
      const SafetensorsFile file(model);
      offset = file.at("model.layers.1.post_attention_layernorm.weight").offset;
      norm = file.read_all<float>("model.layers.1.post_attention_layernorm.weight");
    }
    for (float& w : norm) w *= 300;
    std::fstream(model, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(std::streamoff(offset))
        .write(reinterpret_cast<const char*>(norm.data()), std::streamsize(norm.size() * sizeof(float)));
    std::filesystem::remove(model.parent_path() / "checksums.json");  // it is changed on purpose

    const auto [result, said] = run({"training.steps=8"});
    EXPECT_EQ(result.step, 8);
    EXPECT_TRUE(has(said, concat("FP8 of ", x, " at step 5"))) << said;
    EXPECT_TRUE(has(said, concat("FP8 of ", layer, ": its products run without FP8 from step"))) << said;
    constexpr int known = 5;
    int fell_back_at = 0;
    std::vector<int64_t> steps;
    for (const json& r : records(folder / "log.jsonl")) {
      if (r.contains("fp8_fallback") && r["fp8_fallback"] == layer) fell_back_at = r["step"];
      if (!r.contains("loss")) continue;
      steps.push_back(r["step"]);
      const json& tensors = r["fp8"]["tensors"];
      if (steps.back() == 5) { EXPECT_GT(tensors[x]["saturated"].get<double>(), 0.3); }
      EXPECT_EQ(tensors.contains(x), steps.back() <= known) << steps.back();
    }
    EXPECT_EQ(fell_back_at, known);
    EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
    LoneHost host;
    const auto fallbacks = fallbacks_of(host, result.checkpoint);
    for (const auto& of : {fallbacks, fallbacks_of(host, folder / concat("run/step-0000000", known))})
      EXPECT_TRUE(std::find(of.begin(), of.end(), layer) != of.end());

    const auto [resumed, nothing] = run({"training.steps=10"});
    EXPECT_EQ(resumed.step, 10);
    EXPECT_FALSE(records(folder / "log.jsonl").back()["fp8"]["tensors"].contains(x));
    EXPECT_EQ(fallbacks_of(host, resumed.checkpoint), fallbacks);
  }
}

// Alarms are counted over interruptions: wherever a run stops and goes on, its layers leave FP8 after the same steps.
TEST(Fp8Health, AnInterruptedRunFallsBackWhereAWholeOneDoes) {
  const Scratch folder;
  const auto data = token_file(folder / "train.tokens", 4000, 120);
  const auto run = [&](const std::string& name, const Changes& more) {
    const RunConfig config = tiny_config(
        Changes{"precision.param_dtype=bf16", "fp8.enabled=true", "fp8.amax_history_len=1", "log.fp8_every=1",
                "fp8.fallback=true", "fp8.fallback_after=2", "fp8.alarm_saturated=1e-6", "training.steps=7",
                concat("data.train=[\"", data.string(), "\"]"), concat("checkpoint.dir=", (folder / name).string()),
                concat("log.file=", (folder / (name + ".jsonl")).string()), "log.progress=false"} +
        more);
    LoneHost host;
    const Threads one{1};
    return cpu::engine().train(config, host, planner_for(target_of(cpu::engine(), config), 1));
  };
  const auto course = [&](const std::string& name) {  // losses, and which layers leave when
    json all;
    for (const json& r : records(folder / (name + ".jsonl")))
      all.push_back({r["step"], r.value("loss", json()), r.value("fp8_fallback", json())});
    return all;
  };
  run("whole", {});
  const json whole = course("whole");
  std::set<int> leave;
  for (const json& r : whole)
    if (r[2].is_string()) leave.insert(r[0].get<int>());
  EXPECT_GT(leave.size(), 1u) << whole;
  for (int stop = 1; stop < 7; ++stop) {
    const std::string name = concat("stopped_at_", stop);
    run(name, {concat("training.stop_after=", stop)});
    run(name, {});
    EXPECT_EQ(course(name), whole) << stop;
  }
}

}  // namespace
}  // namespace octet::BACKEND
