// FP8 in a whole model: what is not finite skips a step on all ranks and leaves scales alone; weights are cast once a
// step; evaluation and recomputation leave no trace; ranks agree as far as they are told to; a small model learns text
// as in bf16.
#include "base/files.h"
#include "cpu/lab.h"
#include "cpu/tiny_model.h"
#include "data/scratch.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

Changes operator+(Changes a, const Changes& b) { return with(std::move(a), b); }

Changes fp8(const Changes& more = {}) {
  return Changes{"precision.param_dtype=bf16", "fp8.enabled=true", "fp8.amax_history_len=4"} + more;
}

using ScaleMap = std::map<std::string, float>;
ScaleMap scales_of(Session& s) {
  ScaleMap scales;
  for (DelayedScaling* all : {&s.scaling, &s.params.weight_scales()}) {
    const auto snapshot = all->save(s.stream);
    for (size_t i = 0; i < snapshot.names.size(); ++i) scales[snapshot.names[i]] = snapshot.scale[i];
  }
  return scales;
}
// The same value of every rank, or this test fails.
void expect_agreement(Host& host, const std::string& what, uint64_t mine) {
  std::vector<uint64_t> all(size_t(host.size()));
  host.all_gather(all.data(), &mine, sizeof mine);
  for (uint64_t h : all) EXPECT_EQ(h, all[0]) << what;
}
uint64_t hash_of(const ScaleMap& scales) {
  uint64_t h = 0;
  for (const auto& [name, scale] : scales) h = mix(h ^ hash(name) ^ std::bit_cast<uint32_t>(scale));
  return h;
}

// FP8.md 6.8, test 8.
TEST(Fp8Training, WhatIsNotFiniteOnOneRankSkipsTheStepOnAll) {
  for (const float bad : {NAN, INFINITY})
    for (const char* group : {"world", "shard", "replica", "none"})
      run_ranks(2, [&](Host& host) {
        const Threads one{1};
        TinyTrainer t(tiny_config(fp8({"parallel.zero_stage=0", concat("fp8.reduce_group=", group)})), host);
        Session& s = t.session;
        t.run(2);
        const auto poison = [&](float with) {  // every embedding that this rank reads
          s.params.for_each([&](const std::string& name, Shape, const ParameterStore::Local& l) {
            if (name == "model.embed_tokens.weight")
              for (int64_t i = 0; i < l.weights.numel(); ++i) l.weights.ptr<bf16>()[i] = bf16(with);
          });
        };
        const Bits before = weight_bits(s.params);
        const ScaleMap scales = scales_of(s);
        if (host.rank() == 1) poison(bad);
        t.run(1);
        EXPECT_EQ(t.state().skip, 1u) << group << " rank " << host.rank();
        EXPECT_EQ(t.state().skipped, 1u);
        expect_same(before, weight_bits(s.params));
        const bool saw_it =
            host.rank() == 1 || std::string_view(group) == "world" || std::string_view(group) == "replica";
        for (const auto& [name, scale] : scales_of(s)) {
          const bool seen = saw_it && name.find(".weight.") != std::string::npos;
          if (seen) { EXPECT_EQ(scale, scales.at(name)) << name; }
        }
        s.params.publish(s.stream, ParameterStore::Masters::changed);  // heals the weights
        const std::vector<double> losses = t.run(3);
        EXPECT_EQ(t.state().skipped, 1u);
        EXPECT_EQ(t.state().updates, 5u);
        for (double loss : losses) EXPECT_TRUE(std::isfinite(loss));
        expect_agreement(host, "masters", [&] {
          uint64_t h = 0;
          for (const auto& [name, bytes] : weight_bits(s.params))
            h = mix(h ^ hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
          return h;
        }());
      });
}

// FP8 makes the largest value of an infinity: loss and norm stay finite, only the maximum tells.
TEST(Fp8Training, AnInfiniteCastOfOneRankSkipsTheStepOnAll) {
  for (const char* group : {"world", "shard", "replica", "none"})
    run_ranks(2, [&](Host& host) {
      const Threads one{1};
      TinyTrainer t(tiny_config(fp8({concat("fp8.reduce_group=", group)})), host);
      t.run(2);
      const ScaleMap scales = scales_of(t.session);
      const Bits before = weight_bits(t.session.params);
      DelayedScaling& scaling = t.session.scaling;
      if (host.rank() == 1) scaling.state().amax.ptr<uint32_t>()[3] = std::bit_cast<uint32_t>(INFINITY);
      for (double loss : t.run(1)) EXPECT_TRUE(std::isfinite(loss));
      EXPECT_EQ(t.state().skip, 1u) << group << ", rank " << host.rank();
      expect_same(before, weight_bits(t.session.params));
      if (host.rank() == 1) { EXPECT_EQ(scales_of(t.session).at(scaling.names()[3]), scales.at(scaling.names()[3])); }
      t.run(2);
      EXPECT_EQ(t.state().skipped, 1u);
      EXPECT_EQ(t.state().updates, 4u);
    });
}

// FP8.md 6.8, test 13.
TEST(Fp8Training, GradientsPointWhereThoseOfBf16Point) {
  std::map<std::string, std::vector<double>> bf16;
  const Changes usual{"model.initializer_range=0.02", "model.hidden_size=64"};
  TinyTrainer plain(tiny_config(Changes{"precision.param_dtype=bf16"} + usual)), quantised(tiny_config(fp8(usual)));
  plain.run(1), quantised.run(1);
  const auto each = [](TinyTrainer& t, auto&& f) {
    t.session.params.for_each(
        [&](const std::string& name, Shape, const ParameterStore::Local& l) { f(name, values(l.grad)); });
  };
  each(plain, [&](const std::string& name, const std::vector<double>& g) { bf16[name] = g; });
  each(quantised, [&](const std::string& name, const std::vector<double>& g) {
    double dot = 0, a = 0, b = 0;
    for (size_t i = 0; i < g.size(); ++i)
      dot += g[i] * bf16.at(name)[i], a += g[i] * g[i], b += bf16.at(name)[i] * bf16.at(name)[i];
    EXPECT_GE(dot / std::sqrt(a * b), 0.99) << name;
    EXPECT_LT(dot / std::sqrt(a * b), 1 - 1e-7) << name;
  });
}

// FP8.md 6.8, test 9.
TEST(Fp8Training, WeightsAreCastOnceAStepAndHistoriesAdvanceAsToldTo) {
  const auto trained = [](const char* every, int64_t micro) {
    auto t = std::make_unique<TinyTrainer>(
        tiny_config(fp8({concat("fp8.update_every=", every), "fp8.cold_start=one", "fp8.weight_scaling=delayed",
                         concat("training.micro_batch_size=", micro)})));
    return std::pair(t->run(3), std::move(t));
  };
  const auto [a, by_microbatch] = trained("microbatch", 1);
  const auto [b, by_step] = trained("step", 1);
  const auto [c, at_once] = trained("step", 4);
  EXPECT_EQ(by_microbatch->session.scaling.updates(), 12);
  EXPECT_EQ(by_step->session.scaling.updates(), 3);
  for (const auto* t : {&by_microbatch, &by_step, &at_once})
    EXPECT_EQ((*t)->session.params.weight_scales().updates(), 3);
  // The union of the micro-batches has the maxima of the whole, up to the order of sums.
  expect_near_all(b, c, 1e-3);
  const ScaleMap parts = scales_of(by_step->session);
  for (const auto& [name, scale] : scales_of(at_once->session)) EXPECT_NEAR(parts.at(name) / scale, 1, 0.1) << name;
}

// FP8.md 6.8, test 10.
// Steps whose first maxima are not finite leave scales cold: the next step measures as the first of a run does, also
// after a checkpoint.
TEST(Fp8Training, AFirstMaximumThatIsNotFiniteLeavesTheScaleCold) {
  const Threads one{1};
  const Scratch folder;
  const RunConfig c = tiny_config(fp8({concat("checkpoint.dir=", (folder / "run").string())}));
  TinyTrainer bad(c), good(c), resumed(c);
  bad.session.params.for_each([](const std::string& name, Shape, const ParameterStore::Local& l) {
    if (name == "model.embed_tokens.weight") std::memset(l.weights.data, 0xFF, l.weights.bytes());
  });
  bad.run(1);
  EXPECT_EQ(bad.state().skipped, 1u);
  load_checkpoint(resumed, bad.save());
  bad.session.params.publish(bad.session.stream, ParameterStore::Masters::changed);  // the NaN is gone
  good.restore(bad.done(), good.state());
  const std::vector<double> losses = good.run(4);
  EXPECT_EQ(bad.run(4), losses);
  EXPECT_EQ(resumed.run(4), losses);
  expect_same(weight_bits(bad.session.params), weight_bits(good.session.params));
  expect_same(weight_bits(resumed.session.params), weight_bits(good.session.params));
}

TEST(Fp8Training, RecomputationAndEvaluationChangeNoBit) {
  for (const char* recipe : {"delayed", "current"}) {
    const auto trained = [&](const Changes& more, bool evaluates) {
      TinyTrainer t(tiny_config(fp8(Changes{concat("fp8.recipe=", recipe)} + more)));
      for (int i = 0; i < 4; ++i) {
        t.run(1);
        if (evaluates) t.evaluate(tiny_samples(t.session.config), 3);
      }
      return bits_of(t);
    };
    const Bits plain = trained({}, false);
    expect_same(plain, trained({"memory.recompute_blocks=2"}, false));
    expect_same(plain, trained({"memory.recompute_blocks=1"}, true));
    expect_same(plain, trained({"fp8.eval=true"}, true));
  }
}

TEST(Fp8Training, EvaluationIsInFp8OnRequest) {
  const auto loss = [](const char* how) {
    TinyTrainer t(tiny_config(fp8({concat("fp8.eval=", how)})));
    t.run(2);
    return t.evaluate(tiny_samples(t.session.config), 4);
  };
  const auto plain = [] {  // bf16 evaluates the same weights to the same bits
    TinyTrainer t(tiny_config(fp8()));
    t.run(2);
    TinyTrainer other(tiny_config({"precision.param_dtype=bf16"}));
    std::map<std::string, Tensor> masters;
    t.session.params.for_each(
        [&](const std::string& name, Shape, const ParameterStore::Local& l) { masters[name] = l.master; });
    other.session.params.for_each([&](const std::string& name, Shape, const ParameterStore::Local& l) {
      std::memcpy(l.master.data, masters.at(name).data, l.master.bytes());
    });
    other.session.params.publish(other.session.stream, ParameterStore::Masters::changed);
    return other.evaluate(tiny_samples(t.session.config), 4);
  };
  const double in_bf16 = loss("false"), in_fp8 = loss("true");
  EXPECT_EQ(in_bf16, plain());
  EXPECT_NE(in_bf16, in_fp8);
  EXPECT_NEAR(in_bf16, in_fp8, 0.05);
}

// FP8.md 6.8, test 12, and fp8.reduce_group.
TEST(Fp8Training, RanksAgreeWithinTheirGroup) {
  const auto scales = [](const Changes& more) {  // of four ranks, two of which share slices out
    std::vector<uint64_t> all(4);
    run_ranks(4, [&](Host& host) {
      const Threads one{1};
      TinyTrainer t(tiny_config(fp8(Changes{"training.micro_batch_size=1", "parallel.shard_degree=2"} + more)), host);
      for (int i = 0; i < 3; ++i) {
        t.run(1);
        expect_agreement(host, "scales of weights", hash_of([&] {
                           const auto snapshot = t.session.params.weight_scales().save(t.session.stream);
                           ScaleMap map;
                           for (size_t k = 0; k < snapshot.names.size(); ++k)
                             map[snapshot.names[k]] = snapshot.scale[k];
                           return map;
                         }()));
      }
      all[size_t(host.rank())] = hash_of(scales_of(t.session));
    });
    return all;
  };
  const auto world = scales({"fp8.reduce_group=world"}), shard = scales({"fp8.reduce_group=shard"}),
             replica = scales({"fp8.reduce_group=replica"}), none = scales({"fp8.reduce_amax=false"});
  for (int r = 1; r < 4; ++r) EXPECT_EQ(world[size_t(r)], world[0]) << r;
  EXPECT_TRUE(shard[0] == shard[1] && shard[2] == shard[3] && shard[0] != shard[2]);
  EXPECT_TRUE(replica[0] == replica[2] && replica[1] == replica[3] && replica[0] != replica[1]);
  EXPECT_TRUE(none[0] != none[1] && none[0] != none[2] && none[1] != none[3]);
}

TEST(Fp8Training, ScalesThatRanksDoNotShareAreResumedByEachRank) {
  Scratch folder;
  const RunConfig config =
      tiny_config(fp8({"fp8.reduce_group=none", concat("checkpoint.dir=", (folder / "run").string())}));
  run_ranks(2, [&](Host& host) {
    const Threads one{1};
    TinyTrainer whole(config, host);
    whole.run(2);
    const std::string saved = whole.save();
    const Bits then = bits_of(whole);
    whole.run(2);
    TinyTrainer resumed(config, host);
    load_checkpoint(resumed, saved);
    expect_same(then, bits_of(resumed));
    resumed.run(2);
    expect_same(bits_of(whole), bits_of(resumed));
  });
}

// What a checkpoint says of scales, read by a run of other slots, history, format and margin.
TEST(Fp8Training, ScalesAreCarriedOverToAnotherRecipe) {
  TinyTrainer old(tiny_config(fp8({"fp8.exclude=[\"*.down_proj\"]"})));
  old.run(3);
  const auto saved = old.session.scaling.save(old.session.stream);
  TinyTrainer t(tiny_config(fp8({"fp8.format=E4M3", "fp8.margin=1", "fp8.amax_history_len=2"})));
  DelayedScaling& scaling = t.session.scaling;
  EXPECT_EQ(scaling.load(t.session.stream, saved), 12);
  EXPECT_EQ(scaling.updates(), saved.updates);
  const ScaleMap before = scales_of(old.session), after = scales_of(t.session);
  for (size_t i = 0; i < scaling.names().size(); ++i) {
    const std::string& name = scaling.names()[i];
    const bool found = before.contains(name);
    EXPECT_EQ(scaling.measures_first(scaling.unmeasured(int(i))), !found) << name;  // what is missing starts cold
    if (!found) continue;
    const float change = 0.5f * (name.ends_with(".dy") ? 448.f / 57344 : 1);
    EXPECT_FLOAT_EQ(after.at(name), before.at(name) * change) << name;
    const auto it = std::find(saved.names.begin(), saved.names.end(), name);
    const size_t newest = size_t(saved.history - 1) * saved.names.size() + size_t(it - saved.names.begin());
    EXPECT_EQ(scaling.save(t.session.stream).rows[i], saved.rows[newest]) << name;
  }
  for (double loss : t.run(2)) EXPECT_TRUE(std::isfinite(loss));
  EXPECT_FALSE(scaling.measures_first(scaling.unmeasured(0)));
}

// What travels in bf16 and is cast on arrival is what is rounded to bf16 before its cast, to the bit; and not what is
// cast directly.
TEST(Fp8Training, WeightsGatheredInBf16AreTheSameAsCastThroughIt) {
  for (const int64_t stage : {1, 3}) {
    const auto trained = [&](const Changes& more) {
      Bits bits;
      run_ranks(2, [&](Host& host) {
        const Threads one{1};
        TinyTrainer t(tiny_config(fp8(more + Changes{concat("parallel.zero_stage=", stage)})), host);
        t.run(3);
        const double loss = t.evaluate(tiny_samples(t.session.config), 3);
        if (host.rank() == 0) bits = bits_of(t), keep(bits, "evaluation", std::vector{loss});
      });
      return bits;
    };
    const Bits gathered = trained({"fp8.all_gather=bf16"}), through = trained({"fp8.te_compat=true"}),
               direct = trained({});
    expect_same(gathered, through);
    expect_same(gathered, trained({"fp8.all_gather=bf16", "fp8.override_linear_precision=[false,false,false]"}));
    EXPECT_FALSE(gathered == direct);
    const auto sent = [&](const char* how) {
      return plan_of(tiny_config(fp8({concat("parallel.zero_stage=", stage), concat("fp8.all_gather=", how)})), 2)
          .work[size_t(Kernel::all_gather)]
          .bytes;
    };
    EXPECT_GT(sent("bf16"), 1.2 * sent("fp8"));
  }
}

TEST(Fp8Training, EveryProductOfThePlanHasThePrecisionAndAccumulationAskedFor) {
  const auto fast = [](const Changes& more) {  // fast products: fprop, dgrad, wgrad of down_proj
    std::array<bool, 3> flags{};
    for (const ProductShape& p : plan_of(tiny_config(fp8(more)), 1).products) {
      if (!is_fp8(p.a)) continue;
      if (p.N == 32 && p.K == 48 && p.a == DType::e4m3) flags[0] = p.fast;
      if (p.N == 48 && p.K == 32 && p.a == DType::e5m2 && !p.accumulate) flags[1] = p.fast;
      if (p.M == 32 && p.N == 48 && p.accumulate) flags[2] = p.fast;
    }
    return flags;
  };
  using Flags = std::array<bool, 3>;
  EXPECT_EQ(fast({}), (Flags{true, false, false}));
  EXPECT_EQ(fast({"fp8.fast_accum=[false,true,false]"}), (Flags{false, true, false}));
  EXPECT_EQ(fast({"fp8.fast_accum=[false,false,true]"}), (Flags{false, false, true}));

  const auto lines = [](const Changes& more) { return plan_of(tiny_config(fp8(more)), 1).precision; };
  const auto count = [](const std::vector<std::string>& lines, const char* text) {
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& l) { return l.find(text) != std::string::npos; });
  };
  const auto all = lines({});
  ASSERT_EQ(all.size(), 9u);  // the head, and four of each block
  EXPECT_EQ(all[0], "lm_head  fprop bf16  dgrad bf16  wgrad bf16  (never in FP8)");
  EXPECT_EQ(
      count(all, "model.layers.0.self_attn.{q_proj,k_proj,v_proj}  fprop e4m3*e4m3  dgrad e5m2*e4m3  wgrad e5m2*e4m3"),
      1);
  EXPECT_EQ(count(all, "fprop e4m3"), 8);
  EXPECT_EQ(
      count(lines({"fp8.exclude=[\"*.down_proj\"]"}), "down_proj  fprop bf16  dgrad bf16  wgrad bf16  (fp8.exclude)"),
      2);
  EXPECT_EQ(count(lines({"fp8.exclude=[\"k_proj\"]"}), "(fp8.exclude)"), 2);  // of a merged matrix, one is enough
  EXPECT_EQ(count(lines({"fp8.bf16_first_layers=1"}), "(fp8.bf16_first_layers)"), 4);
  EXPECT_EQ(count(lines({"fp8.bf16_last_layers=1"}), "(fp8.bf16_last_layers)"), 4);
  EXPECT_EQ(count(lines({"model.intermediate_size=40"}), "no multiple of 16)"),
            2);  // down_proj; gate and up together are one
  EXPECT_EQ(count(lines({"fp8.override_linear_precision=[false,false,true]"}),
                  "fprop e4m3*e4m3  dgrad e5m2*e4m3  wgrad bf16"),
            8);
}

TEST(Fp8Training, MixedModelsTrain) {
  for (const Changes& more :
       {Changes{"fp8.bf16_first_layers=1"}, Changes{"fp8.exclude=[\"*.down_proj\"]"},
        Changes{"model.intermediate_size=40"}, Changes{"fp8.format=E4M3"},
        Changes{"fp8.override_linear_precision=[true,false,false]", "fp8.recipe=current"},
        Changes{"fp8.override_linear_precision=[false,true,true]"}, Changes{"precision.param_dtype=fp32"}}) {
    TinyTrainer t(tiny_config(fp8(more)));
    const auto losses = t.run(6);
    EXPECT_LT(losses.back(), losses.front()) << more[0];
  }
}

// A model of 100k parameters on the bytes of the small text: the losses of the last tenth of the run.
double learned(const Changes& more) {
  const RunConfig config =
      tiny_config(Changes{"schedule.lr=1e-3", "model.vocab_size=256", "model.hidden_size=64",
                          "model.intermediate_size=176", "training.steps=160", "training.global_batch_size=8",
                          "training.micro_batch_size=8", "training.seq_len=64", "model.initializer_range=0.02",
                          "schedule.warmup_steps=10", "precision.param_dtype=bf16"} +
                  more);
  const std::string text = read_file(std::string(DATA) + "/saltmarsh.txt");
  const int64_t T = config.training.seq_len;
  const Samples samples{[&](int64_t first, int64_t count) {
                          Batch b{.batch = count, .seq_len = T};
                          for (int64_t g = first; g < first + count; ++g) {
                            const uint64_t at = random_bits(7, 7, uint64_t(g)) % (text.size() - size_t(T) - 1);
                            for (uint64_t t = at; t < at + uint64_t(T); ++t) {
                              b.tokens.push_back(uint8_t(text[t]));
                              b.targets.push_back(uint8_t(text[t + 1]));
                            }
                          }
                          return b;
                        },
                        [=](int64_t, int64_t count) { return count * T; }};
  TinyTrainer t(config);
  const auto losses = t.run(160, samples);
  EXPECT_LT(losses.back(), 0.6 * losses.front());
  double sum = 0;
  for (size_t i = 144; i < 160; ++i) sum += losses[i] / 16;
  return sum;
}
TEST(Fp8Training, ASmallModelLearnsTextAsInBf16) {
  const double bf16 = learned({});
  for (const Changes& more : {Changes{}, Changes{"fp8.recipe=current"}, Changes{"fp8.preset=smp"}}) {
    const double loss = learned(Changes{"fp8.enabled=true"} + more);
    EXPECT_NEAR(loss / bf16, 1, 0.01) << (more.empty() ? "delayed" : more[0]);
    EXPECT_NE(loss, bf16);
  }
}

}  // namespace
}  // namespace octet::BACKEND
