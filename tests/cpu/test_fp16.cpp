// fp16 and loss scaling: what the scale does, what it must not change, how a dynamic one moves, that it
// survives a resume. What holds in every number format (threads, recomputation, ranks, memory) is
// test_training.cpp and its neighbours.
#include "base/json.h"
#include "cpu/tiny_model.h"
#include "data/scratch.h"

namespace octet::BACKEND {
namespace {

const Changes kFp16{"precision.param_dtype=fp16"};
Changes scaled(const char* kind, double scale) {
  return {concat("precision.loss_scaling=", kind), "precision.loss_scale=" + std::to_string(scale)};
}
RunConfig fp16(const Changes& changes) { return tiny_config(with(kFp16, changes)); }

class Fp16 : public testing::Test {
  const Threads one_{1};
};
class LossScaling : public Fp16 {};

TEST_F(Fp16, TrainsAsFp32DoesWithAStaticOrADynamicScale) {
  const Changes longer{"training.steps=30"};
  TinyTrainer exact(tiny_config(longer));
  const auto want = exact.run(30);
  EXPECT_LT(want.back(), want.front() - 1);
  for (const auto& scale : {scaled("static", 256), scaled("dynamic", 256)}) {
    TinyTrainer t(fp16(with(longer, scale)));
    const auto got = t.run(30);
    expect_near_all(got, want, 0.02);
    EXPECT_NE(got, want);
    EXPECT_EQ(t.state().skipped, 0u);
  }
}

TEST_F(Fp16, StoresWeightsInTwoBytes) {
  TinyTrainer t(fp16({}));
  t.session.params.for_each([](const std::string&, Shape, const ParameterStore::Local& l) {
    EXPECT_EQ(l.weights.dtype, DType::f16);
    EXPECT_EQ(l.master.dtype, DType::f32);
  });
}

// What the scale is for: fp16's smallest number is 6e-8. A scale of 1e-6 stands for a loss with small gradients.
TEST_F(Fp16, GradientsBelowItsRangeVanishWithoutAScale) {
  TinyTrainer exact(tiny_config()), small(fp16(scaled("static", 1e-6))), none(fp16({"precision.loss_scaling=none"})),
      large(fp16(scaled("static", 1024)));
  const auto norm = [](TinyTrainer& t) {
    t.run(1);
    return double(t.report(1).state.norm);
  };
  const double want = norm(exact);
  EXPECT_LT(norm(small), 0.7 * want);
  EXPECT_NEAR(norm(large), want, 2e-3 * want);
  EXPECT_NEAR(norm(none), want, 2e-2 * want);
  EXPECT_EQ(none.state().loss_scale, 1);
  EXPECT_NE(none.report(1).state.norm, large.report(1).state.norm);
}

// Powers of two only move exponents: with a scale the same bits are trained, of the balancing loss too.
TEST_F(LossScaling, AStaticPowerOfTwoChangesNoBitWhereTheRangeIsWide) {
  const Changes bf16{"precision.param_dtype=bf16"},
      experts{"model.model_type=mixtral", "model.num_local_experts=5", "model.num_experts_per_tok=2",
              "model.router_aux_loss_coef=0.1", "model.router_z_loss_coef=0.01"};
  for (const Changes& c :
       {Changes{}, bf16, with(bf16, {"optimizer.clip=0"}), experts, with(bf16, {"fp8.enabled=true"})}) {
    TinyTrainer none(tiny_config(c)), scale(tiny_config(with(c, scaled("static", 4096))));
    EXPECT_EQ(none.run(5), scale.run(5));
    EXPECT_EQ(none.report(5).state.norm, scale.report(5).state.norm);
    expect_same(weight_bits(none.session.params), weight_bits(scale.session.params));
    EXPECT_EQ(scale.state().loss_scale, 4096);
    EXPECT_EQ(none.state().loss_scale, 1);
  }
}

TEST_F(LossScaling, AutoIsDynamicInFp16AndNoneElsewhere) {
  const Changes by{"precision.loss_scale=8", "precision.loss_scale_growth_every=1"};
  TinyTrainer half(fp16(by)), bf16(tiny_config(with({"precision.param_dtype=bf16"}, by)));
  half.run(2), bf16.run(2);
  EXPECT_EQ(half.state().loss_scale, 32);
  EXPECT_EQ(bf16.state().loss_scale, 1);
}

// 2^30 times the gradients is infinite in fp16: nothing is written until the scale has come down.
TEST_F(LossScaling, AnOverflowSkipsTheStepAndHalvesADynamicScaleOnly) {
  const double huge = 0x1p30;
  TinyTrainer fixed(fp16(scaled("static", huge))), dynamic(fp16(with(scaled("dynamic", huge), {"training.steps=50"})));
  const Bits before = weight_bits(dynamic.session.params);
  EXPECT_TRUE(std::isfinite(dynamic.run(1)[0]));
  fixed.run(3);
  EXPECT_EQ(dynamic.state().skip, 1u);
  EXPECT_EQ(dynamic.state().updates, 0u);
  EXPECT_EQ(dynamic.state().loss_scale, float(huge / 2));
  expect_same(weight_bits(dynamic.session.params), before);
  EXPECT_EQ(fixed.state().loss_scale, float(huge));
  EXPECT_EQ(fixed.state().skipped, 3u);
  expect_same(weight_bits(fixed.session.params), before);
  const auto losses = dynamic.run(49);
  const StepState end = dynamic.state();
  EXPECT_EQ(end.loss_scale, std::ldexp(1.f, 30 - int(end.skipped)));
  EXPECT_EQ(end.updates, 50 - end.skipped);
  EXPECT_GT(end.updates, 30u);
  EXPECT_LT(losses.back(), losses.front() - 1);
}

TEST_F(LossScaling, GrowsAfterSoManyGoodSteps) {
  TinyTrainer t(fp16(with(scaled("dynamic", 4), {"precision.loss_scale_growth_every=3"})));
  std::vector<float> scales;
  for (int i = 0; i < 7; ++i) {
    t.run(1);
    scales.push_back(t.state().loss_scale);
  }
  EXPECT_EQ(scales, (std::vector<float>{4, 4, 8, 8, 8, 16, 16}));
  EXPECT_EQ(t.state().good_steps, 1u);
}

class Resume : public Fp16 {
 protected:
  RunConfig config(const Changes& changes) const {
    return fp16(with({concat("checkpoint.dir=", (folder_ / "run").string()), "training.steps=60"}, changes));
  }

 private:
  Scratch folder_;
};

// Skipped steps and a growth lie on both sides of the save.
TEST_F(Resume, ScaleAndGoodStepsGoOnBitForBit) {
  const RunConfig c = config(with(scaled("dynamic", 0x1p26), {"precision.loss_scale_growth_every=4"}));
  TinyTrainer whole(c), first(c), second(c);
  const auto losses = whole.run(30);
  auto halves = first.run(3);
  EXPECT_EQ(first.state().skipped, 3u);
  load_checkpoint(second, first.save());
  EXPECT_EQ(second.state().loss_scale, 0x1p23f);
  for (const double loss : second.run(27)) halves.push_back(loss);
  EXPECT_EQ(halves, losses);
  expect_same(bits_of(second), bits_of(whole));
  EXPECT_GT(whole.state().skipped, 3u);
  EXPECT_GT(whole.state().loss_scale, std::ldexp(1.f, 26 - int(whole.state().skipped)));  // it has grown in between

  TinyTrainer third(config(scaled("dynamic", 4)));
  while (second.state().good_steps != 2) second.run(1);
  load_checkpoint(third, second.save());
  EXPECT_EQ(third.state().good_steps, 2u);
  EXPECT_EQ(third.state().loss_scale, second.state().loss_scale);
}

TEST_F(Resume, AScaleThatIsNotDynamicIsTheConfigs) {
  TinyTrainer dynamic(config(scaled("dynamic", 32))), none(config({"precision.loss_scaling=none"})),
      fixed(config(scaled("static", 16)));
  dynamic.run(1);
  const std::string saved = dynamic.save();
  load_checkpoint(none, saved), load_checkpoint(fixed, saved);
  EXPECT_EQ(none.state().loss_scale, 1);
  EXPECT_EQ(fixed.state().loss_scale, 16);
  none.run(1);
  const std::string without = none.save();
  EXPECT_FALSE(read_json(without + "/state.json").contains("loss_scale"));
  load_checkpoint(dynamic, without);
  EXPECT_EQ(dynamic.state().loss_scale, 32);
}

TEST_F(Resume, ADamagedScaleIsRefused) {
  const RunConfig c = config(scaled("dynamic", 32));
  TinyTrainer t(c);
  t.run(1);
  const std::string file = t.save() + "/state.json";
  for (const json& bad : {json(-1), json(0), json("much"), json(1e300), json()}) {
    json state = read_json(file);
    state["loss_scale"] = bad;
    write_file(file, state.dump());
    EXPECT_NE(
        error_of<InputError>([&] { load_checkpoint(t, std::filesystem::path(file).parent_path()); }).find("loss_scale"),
        std::string::npos)
        << bad;
  }
}

TEST_F(Fp16, IsRefusedOnAGpuAtTheStart) {
  const Engine card{.name = "gpu",
                    .available = [] { return true; },
                    .target = [] { return Target{.cuda = true, .compute_capability = 90, .multiprocessors = 132}; }};
  const std::string message = error_of<InputError>([&] { target_of(card, fp16({})); });
  EXPECT_NE(message.find("precision.param_dtype=fp16"), std::string::npos) << message;
  EXPECT_NE(message.find("use bf16"), std::string::npos) << message;
  EXPECT_TRUE(target_of(card, tiny_config({"precision.param_dtype=bf16"})).cuda);
}

}  // namespace
}  // namespace octet::BACKEND
