// Experts that are spread over ranks train the model of one rank: in every stage, with rows that overflow the buffer,
// in FP8, through a checkpoint of any other arrangement; and what travels is each row, once.
#include <algorithm>

#include "cpu/tiny_model.h"
#include "data/scratch.h"
#include "nn/expert_dispatch.h"
#include "ranks.h"
#include "train/agreement.h"

namespace octet::BACKEND {
namespace {

// One micro-batch a step: accumulation would cut the balancing loss otherwise on other numbers of ranks.
RunConfig mixtral(int ranks, const Changes& changes) {
  return tiny_config(with({"model.model_type=mixtral", "model.num_local_experts=4", "model.num_experts_per_tok=2",
                           "model.router_aux_loss_coef=0.05", "model.router_z_loss_coef=0.01",
                           concat("training.micro_batch_size=", 4 / ranks)},
                          changes));
}

struct Trained {
  std::vector<double> losses, others;  // others: balancing loss, z-loss, norm of each step
  std::vector<Bits> bits;              // of each rank
};
void run_steps(TinyTrainer& t, int64_t steps, Trained& r) {
  for (int64_t i = 0; i < steps; ++i) {
    t.step(tiny_samples(t.session.config));
    const StepReport report = t.report(t.steps_done());
    r.losses.push_back(report.loss);
    for (double v : {report.state.aux, report.state.z, double(report.state.norm)}) r.others.push_back(v);
  }
}
Trained train(const Changes& changes, int ranks, int64_t steps = 8) {
  const RunConfig config = mixtral(ranks, changes);
  Trained r{{}, {}, std::vector<Bits>(size_t(ranks))};
  run_ranks(ranks, [&](Host& host) {
    const Threads one{1};
    TinyTrainer t(config, host);
    Trained mine;
    run_steps(t, steps, mine);
    check_agreement(t.session);
    r.bits[size_t(host.rank())] = bits_of(t);
    if (host.rank() == 0) r.losses = mine.losses, r.others = mine.others;
  });
  return r;
}

struct Spread {
  int ranks;
  const char* name;
  Changes changes;
};
std::ostream& operator<<(std::ostream& o, const Spread& s) { return o << s.ranks << "_ranks_" << s.name; }

class ExpertParallel : public testing::TestWithParam<Spread> {};

TEST_P(ExpertParallel, TrainsTheModelOfOneRank) {
  static const Trained one = train({}, 1);
  const Trained many = train(GetParam().changes, GetParam().ranks);
  expect_near_all(many.losses, one.losses, 1e-6);
  expect_near_all(many.others, one.others, 1e-5);
  EXPECT_LT(one.losses.back(), one.losses.front() - 0.1);
}

TEST_P(ExpertParallel, RunsRepeatBitForBitAndRecomputationChangesNone) {
  const Changes changes = GetParam().changes;
  const Trained a = train(changes, GetParam().ranks, 3);
  for (const char* more : {"memory.recompute_blocks=0", "memory.recompute_blocks=2"}) {
    const Trained b = train(with(changes, {more}), GetParam().ranks, 3);
    EXPECT_EQ(a.losses, b.losses) << more;
    for (size_t r = 0; r < a.bits.size(); ++r) expect_same(a.bits[r], b.bits[r]);
  }
}

Changes spread(int over, int stage, const Changes& more = {}) {
  return with({concat("parallel.expert_parallel=", over), concat("parallel.zero_stage=", stage)}, more);
}
INSTANTIATE_TEST_SUITE_P(Spreads, ExpertParallel,
                         testing::Values(Spread{2, "stage_0", spread(2, 0)}, Spread{2, "stage_1", spread(2, 1)},
                                         Spread{2, "stage_2", spread(2, 2)}, Spread{2, "stage_3", spread(2, 3)},
                                         Spread{2, "overflow", spread(2, 1, {"parallel.expert_buffer=1"})},
                                         Spread{2, "any_room", spread(2, 1, {"parallel.expert_buffer=1e30"})},
                                         Spread{4, "half_0", spread(2, 0)}, Spread{4, "half_1", spread(2, 1)},
                                         Spread{4, "half_2", spread(2, 2)}, Spread{4, "half_3", spread(2, 3)},
                                         Spread{4, "all_3", spread(4, 3, {"parallel.expert_buffer=1"})},
                                         Spread{4, "hybrid_3", spread(2, 3, {"parallel.shard_degree=2"})},
                                         Spread{4, "wider_than_shards_2", spread(4, 2, {"parallel.shard_degree=2"})}),
                         testing::PrintToStringParamName());

// Casts have the scales of one rank; what differs is the order of sums, which a cast may amplify, and the first casts,
// which measure what they read.
TEST(ExpertParallelism, Fp8RanksTrainTheModelOfOne) {
  const Changes fp8{"precision.param_dtype=bf16", "fp8.enabled=true", "fp8.amax_history_len=4"};
  const Trained one = train(fp8, 1);
  for (const Changes& how :
       {spread(2, 1), spread(2, 3, {"parallel.expert_buffer=1"}), spread(2, 1, {"fp8.eval=true"})}) {
    const Trained two = train(with(fp8, how), 2);
    expect_near_all(two.losses, one.losses, 1e-2);
    for (const char* of : {"activations.scale", "activations.history", "weights.scale"})
      EXPECT_EQ(two.bits[0].at(of), two.bits[1].at(of));  // ranks agree
  }
}

TEST(ExpertParallelism, ACheckpointResumesOnAnyOtherArrangement) {
  const Scratch folder;
  for (const char* format : {"precision.param_dtype=fp32", "fp8.enabled=true"}) {
    const Changes changes{format, concat("checkpoint.dir=", (folder / format).string())};
    const double tolerance = format == std::string_view("fp8.enabled=true") ? 2e-2 : 1e-6;
    const Trained never_stopped = train(changes, 1, 6);
    const std::vector<double> rest(never_stopped.losses.begin() + 3, never_stopped.losses.end());
    std::string saved;
    run_ranks(4, [&](Host& host) {
      const Threads one{1};
      TinyTrainer t(mixtral(4, with(changes, spread(2, 3))), host);
      t.run(3);
      const std::string at = t.save();
      if (host.rank() == 0) saved = at;
    });
    for (const auto& [ranks, how] : {std::pair{1, Changes{}}, {2, spread(1, 3)}, {2, spread(2, 0)}, {4, spread(4, 2)}})
      run_ranks(ranks, [&](Host& host) {
        const Threads one{1};
        TinyTrainer t(mixtral(ranks, with(changes, how)), host);
        load_checkpoint(t, saved);
        const std::vector<double> losses = t.run(3);
        if (host.rank() == 0) expect_near_all(losses, rest, tolerance);
      });
  }
}

TEST(ExpertParallelism, StoppingChangesNoBit) {
  const Scratch folder;
  const Changes changes = spread(2, 3,
                                 {concat("checkpoint.dir=", (folder / "run").string()), "precision.param_dtype=bf16",
                                  "fp8.enabled=true", "fp8.amax_history_len=4", "fp8.moe_per_expert_scales=true"});
  const RunConfig config = mixtral(2, changes);
  const Trained whole = train(changes, 2, 6);
  run_ranks(2, [&](Host& host) {
    const Threads one{1};
    TinyTrainer first(config, host);
    first.run(3);
    TinyTrainer second(config, host);
    load_checkpoint(second, first.save());
    second.run(3);
    expect_same(bits_of(second), whole.bits[size_t(host.rank())]);
  });
}

TEST(ExpertParallelism, EvaluationIsThatOfOneRank) {
  for (const char* format : {"precision.param_dtype=fp32", "fp8.enabled=true"}) {
    double one = 0;
    for (const auto& [ranks, how] :
         {std::pair{1, Changes{}}, {2, spread(2, 3)}, {2, spread(2, 1, {"parallel.expert_buffer=1"})}})
      run_ranks(ranks, [&](Host& host) {
        const Threads single{1};
        const RunConfig config = mixtral(ranks, with({format}, how));
        TinyTrainer t(config, host);
        const double loss = t.evaluate(tiny_samples(config), 5);
        if (ranks == 1) one = loss;
        else EXPECT_NEAR(loss, one, (config.fp8.enabled ? 1e-3 : 1e-6) * one) << "rank " << host.rank();
      });
  }
}

TEST(ExpertParallelism, ARankHoldsOnlyItsExperts) {
  run_ranks(4, [](Host& host) {
    const Threads one{1};
    TinyTrainer t(mixtral(4, spread(2, 3)), host);
    int64_t names = 0;
    t.session.params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
      const size_t at = name.find(".experts.");
      if (at == std::string::npos) return;
      ++names;
      const int expert = name[at + 9] - '0';
      EXPECT_LE(l.master.numel(), shape.numel());
      if (expert / 2 != host.rank() % 2) { EXPECT_EQ(l.master.numel(), 0) << name; }
    });
    EXPECT_EQ(names, 2 * 4 * 3);  // all of them are known everywhere
  });
}

TEST(ExpertParallelism, ADifferenceBetweenRanksIsFound) {
  run_ranks(4, [](Host& host) {
    const Threads one{1};
    TinyTrainer t(mixtral(4, spread(2, 1)), host);
    t.run(1);
    EXPECT_NO_THROW(check_agreement(t.session));
    const std::string name = "model.layers.1.block_sparse_moe.experts.2.w2.weight";
    t.session.params.for_each_common(t.session.stream, [&](const std::string& thing, Tensor x, int stride) {
      if (thing != name) return;
      EXPECT_EQ(stride, 2);
      if (host.rank() == 3) static_cast<uint8_t*>(x.data)[0] ^= 1;
    });
    EXPECT_THROW(check_agreement(t.session), SystemError);
  });
}

// Also where each expert's rows are measured before their cast, and a round has more experts than the plan dealt it.
TEST(ExpertParallelism, MemoryIsThatOfThePlanHoweverTokensGo) {
  const Changes fp8{"precision.param_dtype=bf16", "fp8.enabled=true"};
  const Changes each = with(fp8, {"fp8.recipe=current", "fp8.moe_per_expert_scales=true", "model.num_local_experts=8"});
  for (const auto& [buffer, blocks, how] :
       {std::tuple{1, 0, fp8}, {1, 1, fp8}, {2, 0, fp8}, {2, 1, fp8}, {1, 0, each}, {1, 2, each}})
    run_ranks(2, [&, buffer = buffer, blocks = blocks, how = how](Host& host) {
      const Threads one{1};
      const RunConfig c = mixtral(
          2, with(spread(2, 2, {concat("parallel.expert_buffer=", buffer), concat("memory.recompute_blocks=", blocks)}),
                  how));
      TinyTrainer t(c, host);
      t.evaluate(tiny_samples(c), 2);
      t.run(2);
      const MemoryPlan peak = t.session.arenas.peak(), plan = plan_of(c, 2).memory;
      for (size_t m = 0; m < kMemoryNames.size(); ++m) EXPECT_EQ(peak.bytes[m], plan.bytes[m]) << kMemoryNames[m];
    });
}

TEST(ExpertParallelism, WhatCannotBeIsRefused) {
  const auto refused = [](const Changes& changes, int ranks) {
    std::string said;
    run_ranks(ranks, [&](Host& host) {
      const RunConfig c = mixtral(1, with({"training.global_batch_size=12", "training.micro_batch_size=1"}, changes));
      const std::string mine = error_of<InputError>([&] { TinyTrainer(c, host); });
      if (host.rank() == 0) said = mine;
    });
    return said;
  };
  EXPECT_TRUE(has(refused(spread(2, 1, {"parallel.shard_degree=3"}), 6), "one must divide the other"));
  setenv("OCTET_LOCAL_SIZE", "2", 1);
  EXPECT_TRUE(has(refused(spread(4, 1), 4), "does not divide the 2 ranks of this machine"));
  unsetenv("OCTET_LOCAL_SIZE");
}

// Each row of each rank goes to the rank of its expert, once, in the same order on both sides; experts are together.
TEST(ExpertRounds, CarryEveryRowOnce) {
  const int64_t E = 8;
  for (const int ranks : {1, 2, 4})
    for (const int64_t room : {16, 48, 4096}) {
      std::vector<int32_t> offset;
      int64_t most = 0;
      std::vector<int64_t> received(static_cast<size_t>(ranks));
      for (int r = 0; r < ranks; ++r) {
        offset.push_back(0);
        for (int64_t e = 0; e < E; ++e) {  // some experts without rows
          const int64_t rows = 16 * std::max<int64_t>(0, int64_t(random_bits(3, uint64_t(r), uint64_t(e)) % 6) - 2);
          offset.push_back(offset.back() + int32_t(rows));
          most = std::max(most, received[size_t(e / (E / ranks))] += rows);
        }
      }
      std::vector<std::vector<ExpertRound>> of;
      for (int r = 0; r < ranks; ++r) of.push_back(plan_rounds(offset.data(), E, ranks, r, room));
      std::vector<std::vector<int>> sent(static_cast<size_t>(ranks));
      for (int r = 0; r < ranks; ++r) sent[size_t(r)].resize(size_t(offset[size_t(r * (E + 1) + E)]));
      for (int to = 0; to < ranks; ++to) {
        const auto& rounds = of[size_t(to)];
        ASSERT_EQ(int64_t(rounds.size()), (most + room - 1) / room);
        for (size_t i = 0; i < rounds.size(); ++i) {
          ASSERT_EQ(rounds[i].first.size(), size_t(E / ranks) + 1);
          int64_t next = 0;  // the buffer is filled without gaps
          std::vector<size_t> cursor(static_cast<size_t>(ranks));
          for (const Piece& p : rounds[i].receives) {
            ASSERT_EQ(p.first, next);
            next += p.rows;
            const auto& away = of[size_t(p.rank)][i].sends;
            size_t& at = cursor[size_t(p.rank)];
            while (at < away.size() && away[at].rank != to) ++at;
            ASSERT_LT(at, away.size());
            ASSERT_EQ(away[at].rows, p.rows);
            for (int64_t row = away[at].first; row < away[at].first + p.rows; ++row) {
              ++sent[size_t(p.rank)][size_t(row)];
              const int32_t* begin = &offset[size_t(p.rank) * size_t(E + 1)];
              const int64_t e = std::upper_bound(begin, begin + E + 1, row) - begin - 1,
                            here = p.first + row - away[at].first;
              ASSERT_EQ(e / (E / ranks), to);
              ASSERT_GE(here, rounds[i].first[size_t(e % (E / ranks))]);
              ASSERT_LT(here, rounds[i].first[size_t(e % (E / ranks)) + 1]);
            }
            ++at;
          }
          ASSERT_EQ(next, rounds[i].first.back());
          ASSERT_LE(next, room);
        }
      }
      for (const auto& rows : sent)
        for (int times : rows) ASSERT_EQ(times, 1);
    }
}

}  // namespace
}  // namespace octet::BACKEND
