// What the options of section fp8 change: the precision and accumulation of each product, when weights are cast and
// histories advance, and what a run with other options takes over from a checkpoint.
#include <algorithm>

#include "cpu/fp8_model.h"

namespace octet::BACKEND {
namespace {

TEST(Fp8Recipe, EveryProductOfThePlanHasThePrecisionAndAccumulationAskedFor) {
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
  EXPECT_EQ(count(lines({"model.intermediate_size=40"}), "not a multiple of 16)"),
            2);  // down_proj; gate and up together are one
  EXPECT_EQ(count(lines({"fp8.override_linear_precision=[false,false,true]"}),
                  "fprop e4m3*e4m3  dgrad e5m2*e4m3  wgrad bf16"),
            8);
}

// What a checkpoint says of scales, read by a run of other slots, history, format and margin.
TEST(Fp8Recipe, ScalesAreCarriedOverToAnotherRecipe) {
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

TEST(Fp8Recipe, WeightsAreCastOnceAStepAndHistoriesAdvanceAsToldTo) {
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

TEST(Fp8Recipe, MixedModelsTrain) {
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

}  // namespace
}  // namespace octet::BACKEND
