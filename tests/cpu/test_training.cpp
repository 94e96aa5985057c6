// What must not change a bit of a training run: a checkpoint, recomputation, threads, an evaluation; and what a step
// means: its loss, its accumulation, a step that is skipped. Sharded training is test_model_sharding.cpp.
#include <limits>
#include <set>

#include "cpu/tiny_model.h"
#include "data/scratch.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

struct Trained {
  std::vector<double> losses;
  Bits bits;
};
Trained train(const RunConfig& config, int64_t steps) {
  TinyTrainer t(config);
  Trained r{t.run(steps), {}};
  r.bits = bits_of(t);
  return r;
}
void expect_same_run(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  expect_same(a.bits, b.bits);
}

class EveryFormat : public testing::TestWithParam<Format> {
 protected:
  const Threads one_{1};
  static RunConfig config(const Changes& more = {}) { return tiny_config(with(GetParam().changes, more)); }
};
INSTANTIATE_TEST_SUITE_P(Training, EveryFormat, testing::ValuesIn(all_formats()), testing::PrintToStringParamName());

TEST_P(EveryFormat, FiveAndFiveStepsThroughACheckpointAreTenSteps) {
  const Scratch folder;
  const RunConfig c = config({concat("checkpoint.dir=", (folder / "run").string())});
  const Trained ten = train(c, 10);
  EXPECT_LT(ten.losses.back(), ten.losses.front() - 0.2);  // it does learn
  std::string saved;
  Trained halves;
  {
    TinyTrainer first(c);
    halves.losses = first.run(5);
    saved = first.save();
  }
  TinyTrainer second(c);
  const RunState state = load_checkpoint(second, saved);
  EXPECT_EQ(state.done.step, 5);
  EXPECT_EQ(state.done.samples, 20);
  EXPECT_EQ(state.done.tokens, 320);
  for (const double loss : second.run(5)) halves.losses.push_back(loss);
  halves.bits = bits_of(second);
  expect_same_run(halves, ten);
  EXPECT_EQ(second.state().updates, 10u);
}

TEST_P(EveryFormat, SavingAndLoadingIsTheSameState) {
  const Scratch folder;
  const RunConfig c = config({concat("checkpoint.dir=", (folder / "run").string())});
  TinyTrainer first(c), second(c);
  first.run(3);
  load_checkpoint(second, first.save());
  expect_same(bits_of(second), bits_of(first));
}

TEST_P(EveryFormat, RecomputationChangesNoBit) {
  const Trained none = train(config(), 6);
  for (const int blocks : {1, 2}) expect_same_run(train(config({concat("memory.recompute_blocks=", blocks)}), 6), none);
}

TEST_P(EveryFormat, ThreadsChangeNoBitAndRunsRepeat) {
  const Trained one = train(config(), 3);
  expect_same_run(train(config(), 3), one);
  const Threads two{2};
  expect_same_run(train(config(), 3), one);
}

TEST_P(EveryFormat, AnEvaluationBetweenStepsChangesNoBit) {
  const Trained undisturbed = train(config(), 6);
  TinyTrainer t(config());
  Trained r;
  std::vector<double> evaluations;
  for (int i = 0; i < 6; ++i) {
    for (int twice = 0; twice < 2; ++twice) evaluations.push_back(t.evaluate(tiny_samples(t.session.config), 3));
    r.losses.push_back(t.run(1)[0]);
    EXPECT_EQ(evaluations[size_t(2 * i)], evaluations[size_t(2 * i + 1)]);
  }
  r.bits = bits_of(t);
  expect_same_run(r, undisturbed);
  EXPECT_LT(evaluations.back(), evaluations.front());
}

// A NaN among the weights makes loss and norm NaN: the step leaves no trace but its count.
TEST_P(EveryFormat, AStepWithANonFiniteLossIsSkipped) {
  TinyTrainer t(config());
  t.run(2);
  const Bits before = weight_bits(t.session.params);
  t.session.params.for_each([](const std::string& name, Shape, const ParameterStore::Local& l) {
    if (name == "model.norm.weight") std::memset(l.weights.data, 0xFF, size_of(l.weights.dtype));
  });
  EXPECT_FALSE(std::isfinite(t.run(1)[0]));
  EXPECT_EQ(t.state().skip, 1u);
  EXPECT_EQ(t.state().skipped, 1u);
  EXPECT_EQ(t.state().updates, 2u);
  EXPECT_EQ(t.steps_done(), 3);
  expect_same(weight_bits(t.session.params), before);
  t.session.params.publish(t.session.stream, ParameterStore::Masters::changed);  // the NaN is gone
  EXPECT_LT(t.run(6).back(), std::log(120.));
  EXPECT_EQ(t.state().skipped, 1u);
  EXPECT_EQ(t.state().updates, 8u);
}

class Training : public testing::Test {
  const Threads one_{1};
};

// The rest of the run is that of a run which never saw the bad batch: same moments, same bias correction.
TEST_F(Training, ASkippedStepIsAsIfItsBatchWereMissing) {
  const RunConfig c = tiny_config({"precision.param_dtype=bf16", "precision.moment_dtype=bf16"});
  TinyTrainer bad(c), good(c);
  bad.run(2), good.run(2);
  bad.session.params.for_each([](const std::string& name, Shape, const ParameterStore::Local& l) {
    if (name == "model.norm.weight") *l.weights.ptr<bf16>() = bf16(std::numeric_limits<float>::infinity());
  });
  bad.run(1);
  bad.session.params.publish(bad.session.stream, ParameterStore::Masters::changed);
  const Done two = good.done();
  good.restore({3, two.samples + c.training.global_batch_size, two.tokens + tokens_per_step(c)}, good.state());
  EXPECT_EQ(bad.run(4), good.run(4));
  expect_same(bits_of(bad), bits_of(good));
}

TEST_F(Training, TheLossIsTheMeanOverTheValidTargetsOfTheGlobalBatch) {
  const RunConfig c = tiny_config({"training.micro_batch_size=1", "training.global_batch_size=8"});
  const Samples samples = tiny_samples(c);
  TinyTrainer t(c);
  std::set<double> numbers;
  for (const int64_t first : {0, 8, 16}) {  // of each step its own
    double sum = 0, valid = 0;
    for (int64_t g = first; g < first + 8; ++g) {
      const double n = double(samples.valid_targets(g, 1));
      sum += t.session.loss(samples, g, 1) * n;
      valid += n;
    }
    EXPECT_TRUE(valid < 8 * 16 - 8 && numbers.insert(valid).second) << valid;
    EXPECT_NEAR(t.session.loss(samples, first, 8), sum / valid, 1e-6 * sum / valid);
    EXPECT_NEAR(t.run(1)[0], sum / valid, 1e-6 * sum / valid);
  }
}

TEST_F(Training, TokensAtIgnoredTargetsDoNotMatter) {
  const RunConfig c = tiny_config();
  Samples last_ignored = tiny_samples(c), other_tokens = last_ignored;
  const auto change = [](Samples& s, int32_t token) {  // what only an ignored target sees
    s.batch = [batch = s.batch, token](int64_t first, int64_t count) {
      Batch b = batch(first, count);
      for (int64_t i = 1; i <= count; ++i) {
        b.targets[size_t(i * b.seq_len - 1)] = kIgnore;
        b.tokens[size_t(i * b.seq_len - 1)] = token;
      }
      return b;
    };
    s.valid_targets = [batch = s.batch](int64_t first, int64_t count) {
      return count_valid(batch(first, count).targets);
    };
  };
  change(last_ignored, 1), change(other_tokens, 77);
  TinyTrainer a(c), b(c);
  EXPECT_EQ(a.run(3, last_ignored), b.run(3, other_tokens));
}

TEST_F(Training, ABatchWithoutAnyTargetHasLossZeroAndHarmsNothing) {
  const RunConfig c = tiny_config({"optimizer.weight_decay=0"});
  TinyTrainer t(c);
  const Samples none = without_targets(c);
  const Bits before = weight_bits(t.session.params);
  EXPECT_EQ(t.run(1, none)[0], 0.);
  expect_same(weight_bits(t.session.params), before);
  EXPECT_EQ(t.evaluate(none, 4), 0.);
}

TEST_F(Training, AccumulationIsOneLargeBatch) {
  const auto losses = [](int64_t micro) {
    return train(tiny_config({"training.global_batch_size=4", concat("training.micro_batch_size=", micro)}), 10).losses;
  };
  const std::vector<double> whole = losses(4);
  expect_near_all(losses(1), whole, 1e-6);
  expect_near_all(losses(2), whole, 1e-6);
}

// The loss moves by about the rounding of the sines and cosines: more in bf16 than in fp16.
TEST_F(Training, RotaryTablesAreRoundedAsTheConfigSays) {
  const auto loss = [](const char* type) {
    return train(tiny_config({concat("precision.buffer_dtype=", type)}), 1).losses[0];
  };
  const double exact = loss("fp32"), fp16 = std::abs(loss("fp16") - exact), bf16 = std::abs(loss("bf16") - exact);
  EXPECT_GT(fp16, 0);
  EXPECT_GT(bf16, fp16);
  EXPECT_LT(bf16, 4e-3);
}

TEST_F(Training, ChunksOfLogitsAreOneHead) {
  const auto losses = [](int64_t rows) { return train(tiny_config({concat("memory.head_chunk=", rows)}), 10).losses; };
  expect_near_all(losses(5), losses(32), 1e-6);
}

TEST_F(Training, AnUpdateIsThatOfTheOptimizersOptions) {
  const RunConfig c =
      tiny_config({"precision.param_dtype=fp64", "optimizer.beta1=0.8", "optimizer.beta2=0.7", "optimizer.eps=0.01",
                   "optimizer.weight_decay=0.3", "optimizer.clip=0.5", "schedule.warmup_steps=0"});
  TinyTrainer t(c);
  std::map<std::string, std::vector<double>> w, m, v;
  t.session.params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
    w[name] = values(l.master);
    m[name] = v[name] = std::vector<double>(size_t(shape.numel()), 0.);
  });
  for (int step = 1; step <= 3; ++step) {
    t.run(1);
    const double lr = t.report(step).lr, clip = double(t.state().clip);
    ASSERT_NEAR(clip * double(t.state().norm), 0.5, 1e-6);
    t.session.params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
      const std::vector<double> g = values(l.grad), now = values(l.master);
      for (size_t i = 0; i < g.size(); ++i) {
        double &wi = w[name][i], &mi = m[name][i], &vi = v[name][i];
        mi = 0.8 * mi + 0.2 * clip * g[i];
        vi = 0.7 * vi + 0.3 * clip * g[i] * clip * g[i];
        const double mean = mi / (1 - std::pow(0.8, step)), square = vi / (1 - std::pow(0.7, step));
        wi -= lr * (mean / (std::sqrt(square) + 0.01) + (shape.rank == 2 ? 0.3 * wi : 0));  // norms do not decay
        ASSERT_NEAR(now[i], wi, 1e-9) << name << " " << i;
      }
    });
  }
}

// What is drawn in a step: the routers' jitter, and the rounding of bf16 masters.
TEST_F(Training, NoiseIsOfTheSeedAndTheStep) {
  const auto step = [](const Changes& noise, int64_t number, int64_t seed) {
    const RunConfig c =
        tiny_config(with({"model.model_type=mixtral", "model.num_local_experts=3", "schedule.kind=constant",
                          "schedule.warmup_steps=0", concat("training.seed=", seed)},
                         noise));
    TinyTrainer t(c);
    t.session.params.draw(t.session.stream, 1);  // the same weights under any seed
    t.session.params.publish(t.session.stream, ParameterStore::Masters::changed);
    const Samples fixed = tiny_samples(c);
    t.restore({.step = number}, t.state());
    const Samples same{[&](int64_t first, int64_t count) { return fixed.batch(first % 4, count); },
                       [&](int64_t first, int64_t count) { return fixed.valid_targets(first % 4, count); }};
    const std::vector<double> loss = t.run(1, same);
    EXPECT_EQ(t.state().skip, 0u) << t.state().norm << " lr " << t.report(number + 1).lr;
    return std::pair(loss, weight_bits(t.session.params));
  };
  const Changes jitter{"model.router_jitter_noise=0.1"}, rounding{"precision.master_dtype=bf16"};
  EXPECT_TRUE(step({}, 0, 1) == step({}, 4, 2));
  for (const Changes& noise : {jitter, rounding}) {
    const auto here = step(noise, 0, 1);
    EXPECT_TRUE(step(noise, 0, 1) == here) << noise[0];
    EXPECT_FALSE(step(noise, 4, 1) == here) << noise[0];
    EXPECT_FALSE(step(noise, 0, 2) == here) << noise[0];
  }
}

// A sequence that is taken twice in a step is jittered in two ways, be it on one rank or on two.
TEST_F(Training, MicroBatchesAreJitteredApart) {
  const auto loss = [](double jitter, int ranks, int64_t sequences) {
    const RunConfig c =
        tiny_config({"model.model_type=mixtral", "model.num_local_experts=3", "training.micro_batch_size=1",
                     concat("model.router_jitter_noise=", jitter), concat("training.global_batch_size=", sequences)});
    const Samples all = tiny_samples(c);
    const Samples first{[&](int64_t, int64_t) { return all.batch(0, 1); },
                        [&](int64_t, int64_t count) { return count * all.valid_targets(0, 1); }};
    double of_rank_0 = 0;
    run_ranks(ranks, [&](Host& host) {
      const Threads one{1};
      const double mine = TinyTrainer(c, host).run(1, first)[0];
      if (host.rank() == 0) of_rank_0 = mine;
    });
    return of_rank_0;
  };
  for (const int ranks : {1, 2}) {
    EXPECT_EQ(loss(0, ranks, 2), loss(0, 1, 1));
    EXPECT_NE(loss(0.1, ranks, 2), loss(0.1, 1, 1)) << ranks;
  }
}

TEST_F(Training, ReportsWhatTheStepDid) {
  const RunConfig c = tiny_config({"optimizer.clip=0.01"});
  TinyTrainer t(c);
  const Samples samples = tiny_samples(c);
  t.step(samples);
  t.step(samples);
  const StepReport first = t.report(1), second = t.report(2);
  EXPECT_EQ(first.step, 1);
  EXPECT_EQ(first.lr, 0.5e-2);  // the first of two warm-up steps
  EXPECT_EQ(second.lr, 1e-2);
  EXPECT_GT(first.state.norm, 0.01f);
  EXPECT_NEAR(first.state.clip * first.state.norm, 0.01f, 1e-6);
  t.step(samples);
  EXPECT_THROW(t.report(1), Error);  // only two are kept
}

}  // namespace
}  // namespace octet::BACKEND
