// Cases of sharding: the norm counts each gradient once; a rank may own nothing, or have nothing to learn from; no
// number of ranks need divide the parameters; decay finds its matrices in slices that begin and end anywhere.
#include <numeric>

#include "cpu/tiny_model.h"
#include "ops/workspace.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

// Two ranks and one parameter of 256 elements: each owns 128 of them.
TEST(ShardCases, TheNormOf3And4OnOneRankAnd12OnTheOtherIs13) {
  for (const int stage : {0, 1, 2, 3})
    run_ranks(2, [&](Host& host) {
      const Threads one{1};
      Device device{{.poison = true}};
      Stream stream(device), side(device);
      MemoryPlan room;
      room.bytes.fill(size_t{1} << 16);
      const Arenas arenas(stream, room);
      const auto alone = host.split(host.rank(), 1);
      const auto world = make_comm(device, host), self = make_comm(device, *alone);
      ParameterStore params(stage ? *world : *self, stage ? nullptr : world.get(), side, {.zero_stage = stage});
      params.begin_unit("unit", Buffers::own);
      const Param w = params.add({{"w", {256}}}, {});
      params.materialise(stream, arenas, 1);
      params.zero_gradients(stream);
      {
        const auto lease = params.acquire(stream, 0, Use::backward);
        float* g = params.grad(stream, w).ptr<float>();
        if (host.rank() == 0) g[128] = 5;  // what a rank finds belongs to the owner: 5 and 7 are its 12
        else g[0] = 3, g[1] = 4, g[128] = 7;
        params.reduce(stream, 0, ParameterStore::Batch::last);
      }
      StepState state;
      std::vector<double> partial(size_t(partial_sums(device.target())));
      const Tensor total{&state.squares, DType::f64, {1}};
      params.sum_squares(stream, total, {partial.data(), DType::f64, {int64_t(partial.size())}});
      EXPECT_EQ(state.squares, 169.) << "stage " << stage;
      finish_gradients(stream, {&state, DType::e4m3, {int64_t(sizeof state)}}, 6.5);
      EXPECT_EQ(state.norm, 13.f);
      EXPECT_NEAR(state.clip, 0.5f, 1e-6f);
      EXPECT_EQ(state.skip, 0u);
      if (stage == 0) return;
      std::vector<double> mine;
      params.for_each([&](const std::string&, Shape, const ParameterStore::Local& l) { mine = values(l.grad); });
      ASSERT_EQ(mine.size(), 128u);
      EXPECT_EQ(mine[0], host.rank() ? 12. : 3.);
      EXPECT_EQ(mine[1], host.rank() ? 0. : 4.);
    });
}

struct Trained {
  std::vector<double> losses, norms;  // of rank 0
  std::vector<int64_t> owned;         // elements, of each rank
};
Trained train(const RunConfig& config, int ranks, int64_t steps, const Samples& samples) {
  Trained r;
  r.owned.resize(size_t(ranks));
  run_ranks(ranks, [&](Host& host) {
    const Threads one{1};
    TinyTrainer t(config, host);
    for (int64_t i = 1; i <= steps; ++i) {
      t.step(samples);
      const StepReport report = t.report(i);
      if (host.rank() == 0) r.losses.push_back(report.loss), r.norms.push_back(report.state.norm);
    }
    t.session.params.for_each([&](const std::string&, Shape, const ParameterStore::Local& l) {
      r.owned[size_t(host.rank())] += l.master.numel();
    });
  });
  return r;
}
Trained train(const RunConfig& config, int ranks, int64_t steps) {
  return train(config, ranks, steps, tiny_samples(config));
}

// A model so small that the slices of the first ranks hold all of it.
TEST(ShardCases, ARankThatOwnsNothingTrainsAlong) {
  const auto config = [](const Changes& more) {
    return tiny_config(
        with({"model.hidden_size=16", "model.intermediate_size=32", "model.num_attention_heads=2",
              "model.num_key_value_heads=1", "training.global_batch_size=24", "training.micro_batch_size=1"},
             more));
  };
  for (const Changes& format : {Changes{}, Changes{"precision.param_dtype=bf16", "fp8.enabled=true"}}) {
    const Trained one = train(config(format), 1, 3);
    for (const char* stage : {"parallel.zero_stage=1", "parallel.zero_stage=2", "parallel.zero_stage=3"}) {
      const Trained many = train(config(with(format, {stage})), 24, 3);
      EXPECT_EQ(many.owned.back(), 0) << stage;
      EXPECT_EQ(std::accumulate(many.owned.begin(), many.owned.end(), int64_t(0)), one.owned[0]) << stage;
      expect_near_all(many.losses, one.losses, format.empty() ? 1e-6 : 1e-2);
      expect_near_all(many.norms, one.norms, format.empty() ? 1e-5 : 5e-2);
    }
  }
}

// 457 is prime: padding makes the slices equal, and is nobody's.
TEST(ShardCases, NoNumberOfRanksDividesTheParameters) {
  for (const int ranks : {2, 3, 4, 5}) {
    int64_t count = 0;
    run_ranks(ranks, [&](Host& host) {
      const Threads one{1};
      Device device{{.poison = true}};
      Stream stream(device), side(device);
      MemoryPlan room;
      room.bytes.fill(size_t{1} << 16);
      const Arenas arenas(stream, room);
      const auto comm = make_comm(device, host);
      ParameterStore params(*comm, nullptr, side, {.zero_stage = 1});
      params.begin_unit("unit", Buffers::own);
      params.add({{"a", {17, 13}}}, {.std = 1});
      params.add({{"b", {16}}}, {.mean = 2});
      params.add({{"c", {11, 20}}}, {.std = 1});
      params.materialise(stream, arenas, 5);
      int64_t mine = 0;
      params.for_each([&](const std::string& name, Shape, const ParameterStore::Local& l) {
        const auto held = values(l.master);
        for (size_t i = 0; i < held.size(); ++i)
          ASSERT_EQ(held[i], name == "b" ? 2. : double(float(normal(5, hash(name), uint64_t(l.first) + i)))) << name;
        mine += int64_t(held.size());
      });
      std::vector<int64_t> all(static_cast<size_t>(ranks));
      host.all_gather(all.data(), &mine, sizeof mine);
      EXPECT_EQ(std::accumulate(all.begin(), all.end(), int64_t(0)), params.count());
      if (host.rank() == 0) count = params.count();
    });
    EXPECT_EQ(count, 457) << ranks;
    EXPECT_NE(count % ranks, 0) << ranks;
  }
}

// Without a loss there are no gradients: what remains of a step is decay, of matrices only.
TEST(ShardCases, DecayFindsItsMatricesInSlicesThatBeginAnywhere) {
  const RunConfig base =
      tiny_config({"training.global_batch_size=12", "training.micro_batch_size=1", "optimizer.weight_decay=0.5",
                   "schedule.warmup_steps=0", "schedule.kind=constant"});
  const Samples silent = without_targets(base);
  for (const int ranks : {1, 3, 4})
    for (const char* stage : {"parallel.zero_stage=1", "parallel.zero_stage=3"})
      run_ranks(ranks, [&](Host& host) {
        const Threads one{1};
        RunConfig config = base;
        config.parallel.zero_stage.set(stage[std::string_view(stage).size() - 1] - '0');
        TinyTrainer t(config, host);
        std::map<std::string, std::vector<double>> before;
        const auto each = [&](auto&& f) {
          t.session.params.for_each(
              [&](const std::string& name, Shape shape, const ParameterStore::Local& l) { f(name, shape, l); });
        };
        int cut = 0;  // matrices of which this rank has a part only
        each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
          before[name] = values(l.master);
          cut += shape.rank == 2 && l.master.numel() > 0 && l.master.numel() < shape.numel();
        });
        EXPECT_EQ(cut > 0, ranks > 1);
        for (double loss : t.run(2, silent)) EXPECT_EQ(loss, 0.);
        EXPECT_EQ(t.state().updates, 2u);
        const double kept = (1 - 1e-2 * 0.5) * (1 - 1e-2 * 0.5);  // lr 1e-2
        each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
          const auto after = values(l.master);
          for (size_t i = 0; i < after.size(); ++i) {
            const double was = before.at(name)[i];
            const double want = shape.rank == 1 ? was : kept * was;
            ASSERT_NEAR(after[i], want, shape.rank == 1 ? 0 : 1e-6 * std::abs(was)) << name << ' ' << i;
          }
        });
      });
}

// What they do there: tests/gpu/test_nccl.cpp.
TEST(ShardCases, TheBoundOfThreadBlocksReachesTheDevice) {
  LoneHost host;
  EXPECT_EQ(options_for(tiny_config({"parallel.nccl_ctas=7"}), host).collective_ctas, 7);
  EXPECT_EQ(options_for(tiny_config(), host).collective_ctas, 0);
}

TEST(ShardCases, ARankWhoseTargetsAreAllIgnored) {
  for (const Changes& format : {Changes{}, Changes{"precision.param_dtype=bf16", "fp8.enabled=true"}}) {
    const RunConfig base = tiny_config(with({"training.global_batch_size=12", "training.micro_batch_size=1"}, format));
    Samples samples = tiny_samples(base);
    samples.batch = [inner = samples.batch](int64_t first, int64_t count) {
      Batch b = inner(first, count);
      for (int64_t i = 0; i < count; ++i)
        if ((first + i) % 12 / 4 == 1)  // the second of three ranks has 4 to 7
          std::fill_n(b.targets.begin() + i * b.seq_len, b.seq_len, kIgnore);
      return b;
    };
    samples.valid_targets = [batch = samples.batch](int64_t first, int64_t count) {
      return count_valid(batch(first, count).targets);
    };
    EXPECT_EQ(samples.valid_targets(12 + 4, 4), 0);
    EXPECT_GT(samples.valid_targets(12, 12), 0);
    const Trained one = train(base, 1, 5, samples);
    for (const char* stage : {"0", "1", "2", "3"}) {
      RunConfig config = base;
      config.parallel.zero_stage.set(std::stoi(stage));
      const Trained three = train(config, 3, 5, samples);
      expect_near_all(three.losses, one.losses, format.empty() ? 1e-6 : 1e-2);
      expect_near_all(three.norms, one.norms, format.empty() ? 1e-5 : 5e-2);
    }
  }
}

}  // namespace
}  // namespace octet::BACKEND
