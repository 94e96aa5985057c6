// FP8 on several ranks: what is not finite on one rank skips the step on all and leaves scales alone; ranks share
// maxima within the group that fp8.reduce_group names; weights gathered in bf16 are cast to the same codes.
#include "cpu/fp8_model.h"
#include "data/scratch.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

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

TEST(Fp8Ranks, WhatIsNotFiniteOnOneRankSkipsTheStepOnAll) {
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
TEST(Fp8Ranks, AnInfiniteCastOfOneRankSkipsTheStepOnAll) {
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

TEST(Fp8Ranks, RanksAgreeWithinTheirGroup) {
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

// Before there is a history each rank measures its own slice; the scale fits the whole weight on all of them.
TEST(Fp8Ranks, DelayedScalesOfColdWeightsFitTheWholeWeights) {
  for (const bool powers : {false, true}) {
    const RunConfig config = tiny_config(fp8({"training.micro_batch_size=1", "fp8.weight_scaling=delayed",
                                              concat("fp8.power_of_2_scales=", powers ? "true" : "false")}));
    const Threads one{1};
    ScaleMap fitted;
    TinyTrainer whole(config);
    whole.session.params.for_each_group([&](const std::string& name, const Param& p, const ParameterStore::Local& l) {
      if (p.slot < 0) return;
      double amax = 0;
      for (double w : values(l.master)) amax = std::max(amax, std::abs(w));
      const float scale = 448 / float(amax);
      fitted[name] = powers ? std::exp2(std::floor(std::log2(scale))) : scale;
    });
    ASSERT_EQ(fitted.size(), 8u);
    for (const int ranks : {1, 2, 4})
      run_ranks(ranks, [&](Host& host) {
        TinyTrainer t(config, host);
        const ScaleMap scales = scales_of(t.session);
        for (const auto& [name, scale] : fitted)
          EXPECT_EQ(scales.at(name), scale) << name << " on rank " << host.rank();
      });
  }
}

TEST(Fp8Ranks, ScalesThatRanksDoNotShareAreResumedByEachRank) {
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

// What travels in bf16 and is cast on arrival is what is rounded to bf16 before its cast, to the bit; and
// not what is cast directly.
TEST(Fp8Ranks, WeightsGatheredInBf16AreTheSameAsCastThroughIt) {
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

}  // namespace
}  // namespace octet::BACKEND
