// FP8 in a whole model: gradients point where those of bf16 point; first maxima that are not finite leave scales cold;
// evaluation and recomputation leave no trace; a small model learns text as in bf16.
#include "base/files.h"
#include "cpu/fp8_model.h"
#include "data/scratch.h"

namespace octet::BACKEND {
namespace {

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
