// Stochastic rounding in training: which way an element is rounded depends on the seed, the step, its parameter and its
// place in it, and on nothing else. Without gradients, masters of 1 fall by a quarter of the distance to their lower
// neighbour in bf16: which of them reach it is seen bare.
#include <algorithm>
#include <mutex>

#include "cpu/tiny_model.h"
#include "data/scratch.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

using Fallen = std::map<std::string, std::vector<bool>>;  // by parameter

RunConfig rounding_config(const Changes& changes) {  // lr * decay = 2^-10
  return tiny_config(with({"model.model_type=mixtral", "model.num_local_experts=4", "model.router_aux_loss_coef=0",
                           "training.global_batch_size=12", "training.micro_batch_size=1", "precision.param_dtype=bf16",
                           "precision.master_dtype=bf16", "schedule.kind=constant", "schedule.warmup_steps=0",
                           "schedule.lr=0.0009765625", "optimizer.weight_decay=1"},
                          changes));
}

// Of this rank's slices, at their places; what decays only.
void step(TinyTrainer& t, Fallen& fallen) {
  const auto matrices = [&](auto&& f) {
    t.session.params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
      if (shape.rank == 2) f(name, shape, l);
    });
  };
  matrices([](const std::string&, Shape, const ParameterStore::Local& l) {
    for (int64_t i = 0; i < l.master.numel(); ++i) l.master.ptr<bf16>()[i] = bf16(1);
  });
  t.session.params.publish(t.session.stream, ParameterStore::Masters::changed);
  t.run(1, without_targets(t.session.config));
  ASSERT_EQ(t.state().norm, 0.f);
  matrices([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
    std::vector<bool>& all = fallen[name];
    all.resize(size_t(shape.numel()));
    const std::vector<double> now = values(l.master);
    for (size_t i = 0; i < now.size(); ++i) {
      ASSERT_TRUE(now[i] == 1 || now[i] == 1 - 0x1p-8) << name << " " << now[i];
      all[size_t(l.first) + i] = now[i] < 1;
    }
  });
}
Fallen fallen_in(const Changes& changes, int ranks, int64_t steps_before = 0) {
  Fallen all;
  std::mutex mutex;
  run_ranks(ranks, [&](Host& host) {
    const Threads one{1};
    TinyTrainer t(rounding_config(changes), host);
    t.restore({.step = steps_before}, t.state());
    Fallen mine;
    step(t, mine);
    const std::lock_guard lock(mutex);
    for (const auto& [name, some] : mine) {
      std::vector<bool>& whole = all[name];
      whole.resize(some.size());
      for (size_t i = 0; i < some.size(); ++i) whole[i] = whole[i] || some[i];
    }
  });
  return all;
}

// The share of elements that are rounded alike: of independent ones 1/16 + 9/16.
double alike(const std::vector<bool>& a, const std::vector<bool>& b) {
  const size_t n = std::min(a.size(), b.size());
  size_t same = 0;
  for (size_t i = 0; i < n; ++i) same += a[i] == b[i];
  return double(same) / double(n);
}

TEST(Rounding, EachParameterHasItsOwn) {
  const Fallen all = fallen_in({}, 1);
  EXPECT_EQ(all.size(), 2u + 2 * (4 + 1 + 3 * 4));
  for (const auto& [name, fell] : all) {
    if (fell.size() < 500) continue;
    EXPECT_NEAR(double(std::count(fell.begin(), fell.end(), true)) / double(fell.size()), 0.25, 0.1) << name;
    for (const auto& [other, theirs] : all)
      if (name < other && theirs.size() >= 500) {
        EXPECT_NEAR(alike(fell, theirs), 0.625, 0.12) << name << ' ' << other;
      }
  }
}

TEST(Rounding, IsTheSameOnAnyRanks) {
  const Fallen one = fallen_in({}, 1);
  EXPECT_EQ(fallen_in({}, 1), one);
  for (const auto& [ranks, changes] :
       std::vector<std::pair<int, Changes>>{{2, {"parallel.zero_stage=0"}},
                                            {3, {"parallel.zero_stage=1"}},
                                            {4, {"parallel.zero_stage=2", "parallel.shard_degree=2"}},
                                            {3, {"parallel.zero_stage=3"}},
                                            {4, {"parallel.zero_stage=3", "parallel.expert_parallel=2"}}})
    EXPECT_TRUE(fallen_in(changes, ranks) == one) << ranks << " ranks, " << changes[0];
}

TEST(Rounding, IsAnotherInEachStepAndUnderAnotherSeed) {
  const std::string name = "model.embed_tokens.weight";
  std::vector<std::vector<bool>> all{fallen_in({"training.seed=4"}, 1).at(name)};
  for (int64_t step = 0; step < 6; ++step) all.push_back(fallen_in({}, 1, step).at(name));
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = 0; b < a; ++b) EXPECT_NEAR(alike(all[a], all[b]), 0.625, 0.05) << a << " and " << b;
}

TEST(Rounding, GoesOnAfterAResume) {
  const Scratch folder;
  const RunConfig c = rounding_config({concat("checkpoint.dir=", (folder / "run").string())});
  TinyTrainer whole(c), resumed(c);
  Fallen before, then, again;
  step(whole, before), step(whole, before);
  load_checkpoint(resumed, whole.save());
  step(whole, then), step(resumed, again);
  EXPECT_TRUE(then == again);
  EXPECT_FALSE(then == before);
}

}  // namespace
}  // namespace octet::BACKEND
