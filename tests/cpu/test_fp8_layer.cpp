// One Linear under delayed scaling: the golden scales to the bit and products to 1e-5; what a spike, an override and
// each form of the recipe do to it.
#include "base/files.h"
#include "base/json.h"
#include "cpu/fp8_layer.h"
#include "data/safetensors.h"
#include "golden.h"

namespace octet::BACKEND {
namespace {

struct GoldenLayer : testing::TestWithParam<const char*> {};

double relative(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
}

TEST_P(GoldenLayer, ScalesToTheBitAndProductsTo1e5) {
  const std::string base = golden(concat("fp8-delayed/", GetParam()));
  const json g = parse_json(read_file(base + ".json"), base);
  const SafetensorsFile file(base + ".safetensors");
  Layer layer(layer_config({concat("fp8.amax_compute_algo=", g["algo"].get<std::string>()),
                            concat("fp8.margin=", g["margin"].get<int>()), "fp8.amax_history_len=4",
                            "fp8.cold_start=one", "fp8.weight_scaling=delayed"}),
              64, 48);
  layer.set_weights(file.read_all<float>("w"));
  ASSERT_EQ(g["steps"].size(), 8u);
  for (const json& step : g["steps"]) {
    const std::string number = std::to_string(step["step"].get<int>());
    const auto tensor = [&](const char* name, Shape shape) {
      Tensor t = layer.lab().empty(DType::f32, shape);
      const auto values = file.read_all<float>(number + name);
      std::copy(values.begin(), values.end(), t.ptr<float>());
      return t;
    };
    const auto expect_scales = [&](const char* key) {
      for (const auto& [ours, theirs] :
           std::map<std::string, const char*>{{"w.weight.x", "x"}, {"w.weight", "w"}, {"w.weight.dy", "g"}})
        EXPECT_EQ(layer.scale(ours), step[key][theirs].get<float>()) << key << " of " << theirs << ", step " << number;
    };
    expect_scales("scale_used");
    const auto p = layer.run(tensor(".x", {32, 48}), tensor(".g", {32, 64}));
    EXPECT_LT(relative(values(p.y), file.read_all<double>(number + ".y")), 1e-5) << "step " << number;
    EXPECT_LT(relative(values(p.dx), file.read_all<double>(number + ".dx")), 1e-5) << "step " << number;
    EXPECT_LT(relative(values(p.dw), file.read_all<double>(number + ".dw")), 1e-5) << "step " << number;
    layer.update();
    expect_scales("scale_next");
  }
}
INSTANTIATE_TEST_SUITE_P(All, GoldenLayer,
                         testing::Values("max-margin0", "max-margin1", "most_recent-margin0", "most_recent-margin1"));

Tensor constant_rows(Lab& lab, Shape shape, float value) {
  Tensor t = lab.normal(DType::f32, shape, 0);
  for (int64_t i = 0; i < shape.numel(); ++i) t.ptr<float>()[i] = i % 3 ? value / 2 : -value;
  return t;
}
std::vector<double> identity(int64_t n, double times = 1) {
  std::vector<double> w(size_t(n * n), 0.);
  for (int64_t i = 0; i < n; ++i) w[size_t(i * n + i)] = times;
  return w;
}

// Of maxima of 1.75 scales are 256: no rounding but that of FP8.
TEST(Fp8Layer, ASpikeSaturatesExactlyAndTheNextScaleIsRight) {
  Layer layer(layer_config({"fp8.amax_history_len=4"}), 32, 32);
  layer.set_weights(identity(32, 1.75));
  const Tensor calm = constant_rows(layer.lab(), {16, 32}, 1.75), spike = constant_rows(layer.lab(), {16, 32}, 400),
               dy = constant_rows(layer.lab(), {16, 32}, 1e-3f);
  layer.run(calm, dy);
  layer.update();
  ASSERT_EQ(layer.scale("w.weight.x"), 256);
  const auto p = layer.run(spike, dy);
  for (int64_t i = 0; i < p.y.numel(); ++i)  // whatever lies beyond 448 / 256
    ASSERT_EQ(p.y.ptr<float>()[i], (i % 3 ? 1.75f : -1.75f) * 1.75f) << i;
  layer.update();
  EXPECT_EQ(layer.scale("w.weight.x"), 448.f / 400);
  const auto after = layer.run(spike, dy);
  for (int64_t i = 0; i < p.y.numel(); ++i)
    ASSERT_NEAR(after.y.ptr<float>()[i], 1.75f * spike.ptr<float>()[i], 700. / 16) << i;
  for (int i = 0; i < 4; ++i) {  // a window of four remembers it
    EXPECT_EQ(layer.scale("w.weight.x"), 448.f / 400) << i;
    layer.run(calm, dy);
    layer.update();
  }
  layer.run(calm, dy);
  layer.update();
  EXPECT_EQ(layer.scale("w.weight.x"), 256);
}

TEST(Fp8Layer, ColdStartMeasuresOrTakesOne) {
  for (const bool one : {false, true}) {
    Layer layer(layer_config({concat("fp8.cold_start=", one ? "one" : "current")}), 32, 32);
    layer.set_weights(identity(32));
    const Tensor x = constant_rows(layer.lab(), {16, 32}, 1), dy = constant_rows(layer.lab(), {16, 32}, 1e-7f);
    const auto p = layer.run(x, dy);
    EXPECT_EQ(layer.scale("w.weight.dy"), 1);  // nothing is stored of a first cast's scale
    for (double v : values(p.dx)) {
      if (one) EXPECT_EQ(v, 0);  // 1e-7 is below E5M2's smallest
      else EXPECT_NEAR(std::abs(v), std::abs(v) < 7e-8 ? 5e-8 : 1e-7, 1e-9);
    }
    layer.update();
    EXPECT_EQ(layer.scale("w.weight.dy"), 57344 / 1e-7f);
    EXPECT_GT(std::abs(values(layer.run(x, dy).dx)[0]), 9e-8);
  }
}

// As where no target counts in the first micro-batch, or where an imported model has matrices of zeros.
TEST(Fp8Layer, ATensorThatWasZeroIsStillMeasuredFirst) {
  for (const char* length : {"fp8.amax_history_len=1", "fp8.amax_history_len=4"}) {
    Layer layer(layer_config({length}), 32, 32);
    layer.set_weights(identity(32));
    const Tensor x = constant_rows(layer.lab(), {16, 32}, 1), none = layer.lab().zeros(DType::f32, {16, 32}),
                 dy = constant_rows(layer.lab(), {16, 32}, 1e-7f);
    for (int i = 0; i < 2; ++i) layer.run(x, none), layer.update();
    EXPECT_EQ(layer.scale("w.weight.dy"), 1) << length;
    EXPECT_GT(std::abs(values(layer.run(x, dy).dx)[0]), 9e-8) << length;
    layer.update();
    EXPECT_EQ(layer.scale("w.weight.dy"), 57344 / 1e-7f) << length;
    layer.run(x, none), layer.update();  // no new beginning: its scale is known
    EXPECT_EQ(values(layer.run(x, constant_rows(layer.lab(), {16, 32}, 1)).dx)[0], -double(1e-7f)) << length;
  }
}

TEST(Fp8Layer, OnlyWhatIsCastHasASlot) {
  const auto slots = [](const char* kept) {
    std::string names;
    Layer layer(layer_config({concat("fp8.override_linear_precision=", kept)}), 32, 32);
    for (const std::string& name : layer.scaling.names()) names += name.substr(8);
    return names;
  };
  EXPECT_EQ(slots("[false,false,false]"), ".x.dy");
  EXPECT_EQ(slots("[true,true,false]"), ".x.dy");
  EXPECT_EQ(slots("[false,true,true]"), ".x");
  EXPECT_EQ(slots("[true,false,true]"), ".dy");
}

TEST(Fp8Layer, UnderCurrentScalingNoHistoryMatters) {
  const auto spiked = [](const char* recipe) {
    Layer layer(layer_config({concat("fp8.recipe=", recipe)}), 32, 32);
    layer.set_weights(identity(32, 1.75));
    const Tensor calm = constant_rows(layer.lab(), {16, 32}, 1.75), spike = constant_rows(layer.lab(), {16, 32}, 448);
    layer.run(calm, calm);
    layer.update();
    return values(layer.run(spike, calm).y)[0];
  };
  EXPECT_EQ(spiked("current"), -448 * 1.75);
  EXPECT_EQ(spiked("delayed"), -1.75 * 1.75);
}

TEST(Fp8Layer, OptionsMoveTheScale) {
  const auto scale_after = [](const std::vector<std::string>& changes, const std::vector<float>& maxima) {
    Layer layer(layer_config(changes), 32, 32);
    layer.set_weights(identity(32));
    for (float m : maxima) {
      layer.run(constant_rows(layer.lab(), {16, 32}, m), constant_rows(layer.lab(), {16, 32}, m));
      layer.update();
    }
    return std::pair(layer.scale("w.weight.x"), layer.scale("w.weight.dy"));
  };
  using Scales = std::pair<float, float>;
  EXPECT_EQ(scale_after({}, {4, 2}), Scales(112, 14336));
  EXPECT_EQ(scale_after({"fp8.format=E4M3"}, {4, 2}), Scales(112, 112));
  EXPECT_EQ(scale_after({"fp8.margin=2"}, {4, 2}), Scales(28, 3584));
  EXPECT_EQ(scale_after({"fp8.amax_compute_algo=most_recent"}, {4, 2}), Scales(224, 28672));
  EXPECT_EQ(scale_after({"fp8.amax_history_len=1"}, {4, 2}), Scales(224, 28672));
  EXPECT_EQ(scale_after({"fp8.amax_history_len=2"}, {4, 2, 2}), Scales(224, 28672));
  EXPECT_EQ(scale_after({"fp8.power_of_2_scales=true"}, {4, 3}), Scales(64, 8192));
  EXPECT_EQ(scale_after({"fp8.interval=3"}, {1, 2, 4}), Scales(448, 57344));  // of update 0
  EXPECT_EQ(scale_after({"fp8.interval=3"}, {1, 2, 4, 4}), Scales(112, 14336));
  const auto poisoned = [&](bool te) {
    return scale_after({concat("fp8.te_compat=", te ? "true" : "false")}, {4, INFINITY, 8}).first;
  };
  EXPECT_EQ(poisoned(false), 56);
  EXPECT_EQ(poisoned(true), 112);  // frozen while inf is in the window
}

TEST(Fp8Layer, WeightScalesAreExactOrDelayed) {
  const auto scale_after_growth = [](const char* how) {
    Layer layer(layer_config({concat("fp8.weight_scaling=", how)}), 32, 32);
    layer.set_weights(identity(32));
    layer.params.for_each_group([&](const std::string&, const Param& p, const ParameterStore::Local& l) {
      l.master.ptr<float>()[0] = 4;  // as AdamW does
      if (uint32_t* amax = layer.params.weight_amax(p.slot)) *amax = std::bit_cast<uint32_t>(4.f);
    });
    layer.params.publish(layer.lab().stream(), ParameterStore::Masters::stepped);
    return layer.scale("w.weight");
  };
  EXPECT_EQ(scale_after_growth("current"), 112);
  EXPECT_EQ(scale_after_growth("delayed"), 448);
}

// All eight combinations: which products see values rounded to FP8.
TEST(Fp8Layer, EachProductCanBeKeptOutOfFp8) {
  for (int bits = 0; bits < 8; ++bits) {
    const bool keep[3] = {bool(bits & 1), bool(bits & 2), bool(bits & 4)};
    Layer layer(layer_config({concat("fp8.override_linear_precision=[", keep[0] ? "true" : "false", ",",
                                     keep[1] ? "true" : "false", ",", keep[2] ? "true" : "false", "]")}),
                48, 32);
    Lab& lab = layer.lab();
    const Tensor w = lab.normal(DType::f32, {48, 32}), x = lab.normal(DType::f32, {64, 32}),
                 dy = lab.normal(DType::f32, {64, 48});
    layer.set_weights(values(w));
    const auto p = layer.run(x, dy);
    const auto exact = [&](Shape shape, Factor a, Factor b) {
      Tensor d = lab.empty(DType::f32, shape);
      gemm(lab.stream(), {.d = d, .a = a, .b = b});
      return values(d);
    };
    const double errors[3] = {distance(values(p.y), exact({64, 48}, {x}, {w})),
                              distance(values(p.dx), exact({64, 32}, {dy}, {w, true})),
                              distance(values(p.dw), exact({48, 32}, {dy, true}, {x, true}))};
    for (int i = 0; i < 3; ++i) {
      if (keep[i]) EXPECT_LT(errors[i], 1e-12) << bits << ", product " << i;
      else EXPECT_GT(errors[i], 1e-5) << bits << ", product " << i;
      EXPECT_LT(errors[i], 1e-2) << bits << ", product " << i;
    }
    const std::string line = layer.recipe().report->back();
    const char* names[] = {"fprop ", "dgrad ", "wgrad "};
    const char* fp8[] = {"e4m3*e4m3", "e5m2*e4m3", "e5m2*e4m3"};
    for (int i = 0; i < 3; ++i)
      EXPECT_NE(line.find(concat(names[i], keep[i] ? "f32" : fp8[i])), std::string::npos) << line;
  }
}

// 28.7 dB and 24.8 dB are expected of normal values.
TEST(Fp8Layer, ProductsKeepTheirSignalToNoiseRatio) {
  Layer layer(layer_config({}), 128, 256);
  Lab& lab = layer.lab();
  const Tensor w = lab.normal(DType::f32, {128, 256}), x = lab.normal(DType::f32, {192, 256}),
               dy = lab.normal(DType::f32, {192, 128});
  layer.set_weights(values(w));
  const auto p = layer.run(x, dy);
  const auto decibels = [&](Tensor got, Factor a, Factor b) {
    Tensor d = lab.empty(DType::f32, got.shape);
    gemm(lab.stream(), {.d = d, .a = a, .b = b});
    return -20 * std::log10(relative(values(got), values(d)));
  };
  EXPECT_GE(decibels(p.y, {x}, {w}), 27.5);
  EXPECT_GE(decibels(p.dx, {dy}, {w, true}), 23.5);
  EXPECT_GE(decibels(p.dw, {dy, true}, {x, true}), 23.5);
}

TEST(Fp8Layer, WhatStaysOutOfFp8IsReportedWithItsReason) {
  const auto line = [](const std::vector<std::string>& changes, int64_t out = 32, int64_t number = 1) {
    return Layer(layer_config(changes), out, 32, number).recipe().report->back();
  };
  EXPECT_EQ(line({}), "w  fprop e4m3*e4m3  dgrad e5m2*e4m3  wgrad e5m2*e4m3");
  EXPECT_EQ(line({"fp8.format=E4M3"}), "w  fprop e4m3*e4m3  dgrad e4m3*e4m3  wgrad e4m3*e4m3");
  const std::string kept = "w  fprop f32  dgrad f32  wgrad f32  (";
  EXPECT_EQ(line({}, 40), kept + "its shape (40, 32) is not a multiple of 16)");
  EXPECT_EQ(line({"fp8.exclude=[\"w\"]"}), kept + "fp8.exclude)");
  EXPECT_EQ(line({"fp8.bf16_first_layers=1"}, 32, 0), kept + "fp8.bf16_first_layers)");
  EXPECT_EQ(line({"fp8.bf16_first_layers=1"}), line({}));
  EXPECT_EQ(line({"fp8.bf16_last_layers=1"}), kept + "fp8.bf16_last_layers)");
  EXPECT_EQ(line({"fp8.enabled=false"}), kept + "fp8.enabled is false)");
  EXPECT_EQ(line({"fp8.override_linear_precision=[true,true,true]"}), kept + "fp8.override_linear_precision)");
}

TEST(Fp8Layer, RecomputationAndEvaluationLeaveNoTraceAndRecomputeTheSameBits) {
  for (const char* recipe : {"delayed", "current"})
    for (const int warm : {0, 1}) {
      Layer layer(layer_config({concat("fp8.recipe=", recipe), "fp8.eval=true"}), 32, 32);
      const Tensor x = layer.lab().normal(DType::f32, {16, 32}, 3);
      layer.set_weights(values(layer.lab().normal(DType::f32, {32, 32})));
      if (warm) layer.run(layer.lab().normal(DType::f32, {16, 32}), x), layer.update();
      const auto forward = [&](Pass pass) {
        Context c = layer.context(pass);
        const auto weights =
            layer.params.acquire(layer.lab().stream(), 0, pass == Pass::evaluate ? Use::evaluate : Use::forward);
        Tensor y = layer.lab().empty(DType::f32, {16, 32});
        layer.linear().forward(c, y, layer.linear().input(c, x));
        return y;
      };
      const uint64_t before = layer.state_hash();
      const Tensor evaluated = forward(Pass::evaluate);
      EXPECT_EQ(before, layer.state_hash());
      const Tensor trained = forward(Pass::train);
      const uint64_t measured = layer.state_hash();
      EXPECT_NE(before, measured);
      const Tensor again = forward(Pass::recompute);
      EXPECT_EQ(measured, layer.state_hash());
      EXPECT_TRUE(same_bits(trained, again));
      EXPECT_TRUE(same_bits(trained, evaluated));
    }
}

}  // namespace
}  // namespace octet::BACKEND
