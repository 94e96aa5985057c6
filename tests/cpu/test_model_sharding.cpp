// R ranks train the model of one: losses within 1e-6 for every stage of sharding and for hybrid sharding, the same bits
// from run to run, and a checkpoint of any number of ranks resumes on any other.
#include "cpu/tiny_model.h"
#include "data/scratch.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

// 12 sequences a step: 1, 2, 3 and 4 ranks can share them.
RunConfig sharded_config(const Changes& changes) {
  return tiny_config(
      with({"training.global_batch_size=12", "training.micro_batch_size=1", "schedule.lr=3e-3"}, changes));
}

struct Trained {
  std::vector<double> losses;
  std::vector<Bits> bits;  // of each rank
};
Trained train(const RunConfig& config, int ranks, int64_t steps = 10) {
  Trained r{{}, std::vector<Bits>(size_t(ranks))};
  run_ranks(ranks, [&](Host& host) {
    const Threads one{1};
    TinyTrainer t(config, host);
    std::vector<double> losses = t.run(steps);
    r.bits[size_t(host.rank())] = bits_of(t);
    if (host.rank() == 0) r.losses = std::move(losses);
  });
  return r;
}

struct Sharding {
  int ranks;
  const char* name;
  Changes changes;
};
std::ostream& operator<<(std::ostream& o, const Sharding& s) { return o << s.ranks << "_ranks_" << s.name; }

class Sharded : public testing::TestWithParam<Sharding> {};

TEST_P(Sharded, TrainsTheModelOfOneRank) {
  const Trained one = train(sharded_config(with(GetParam().changes, {"parallel.shard_degree=0"})), 1);
  const Trained many = train(sharded_config(GetParam().changes), GetParam().ranks);
  expect_near_all(many.losses, one.losses, 1e-6);
  EXPECT_LT(one.losses.back(), one.losses.front() - 0.2);
}

TEST_P(Sharded, RunsRepeatBitForBitAndRecomputationChangesNone) {
  Changes changes = GetParam().changes;
  const Trained a = train(sharded_config(changes), GetParam().ranks, 4);
  for (const char* more : {"memory.recompute_blocks=0", "memory.recompute_blocks=2", "parallel.prefetch=0"}) {
    const Trained b = train(sharded_config(with(changes, {more})), GetParam().ranks, 4);
    EXPECT_EQ(a.losses, b.losses) << more;
    for (size_t r = 0; r < a.bits.size(); ++r) expect_same(a.bits[r], b.bits[r]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Stages, Sharded,
    testing::Values(
        Sharding{2, "stage_0", {"parallel.zero_stage=0"}}, Sharding{2, "stage_1", {"parallel.zero_stage=1"}},
        Sharding{2, "stage_2", {"parallel.zero_stage=2"}}, Sharding{2, "stage_3", {"parallel.zero_stage=3"}},
        Sharding{3, "stage_1", {"parallel.zero_stage=1"}}, Sharding{3, "stage_2", {"parallel.zero_stage=2"}},
        Sharding{3, "stage_3", {"parallel.zero_stage=3"}},
        Sharding{3, "stage_3_tied", {"parallel.zero_stage=3", "model.tie_word_embeddings=true"}},
        Sharding{4, "hybrid_1", {"parallel.zero_stage=1", "parallel.shard_degree=2"}},
        Sharding{4, "hybrid_2", {"parallel.zero_stage=2", "parallel.shard_degree=2"}},
        Sharding{4, "hybrid_3", {"parallel.zero_stage=3", "parallel.shard_degree=2"}}),
    testing::PrintToStringParamName());

// Where all ranks agree on scales, casts are those of one rank; what differs is the order of sums, which a cast may
// amplify.
TEST(Sharding, Fp8RanksTrainTheModelOfOne) {
  const Changes fp8{"precision.param_dtype=bf16", "fp8.enabled=true", "fp8.amax_history_len=4"};
  const Trained one = train(sharded_config(fp8), 1);
  for (const char* stage : {"parallel.zero_stage=1", "parallel.zero_stage=3"}) {
    const Trained two = train(sharded_config(with(fp8, {stage})), 2);
    expect_near_all(two.losses, one.losses, 1e-2);
    for (const char* of : {"activations.scale", "activations.history", "weights.scale"})
      EXPECT_EQ(two.bits[0].at(of), two.bits[1].at(of)) << stage;  // ranks agree
  }
}

TEST(Sharding, ACheckpointOfFourRanksResumesOnFewer) {
  const Scratch folder;
  for (const char* format : {"precision.param_dtype=fp32", "fp8.enabled=true"}) {
    const Changes changes{format, "parallel.zero_stage=3", concat("checkpoint.dir=", (folder / format).string())};
    const RunConfig config = sharded_config(changes),
                    hybrid = sharded_config(with(changes, {"parallel.shard_degree=2"}));
    const double tolerance = config.fp8.enabled ? 1e-2 : 1e-6;
    const Trained never_stopped = train(config, 1);
    const std::vector<double> rest(never_stopped.losses.begin() + 5, never_stopped.losses.end());
    std::string saved;
    run_ranks(4, [&](Host& host) {
      const Threads one{1};
      TinyTrainer t(hybrid, host);
      t.run(5);
      const std::string at = t.save();
      if (host.rank() == 0) saved = at;
    });
    for (const int ranks : {1, 2, 3, 4})
      run_ranks(ranks, [&](Host& host) {
        const Threads one{1};
        TinyTrainer t(config, host);
        load_checkpoint(t, saved);
        const std::vector<double> losses = t.run(5);
        if (host.rank() == 0) expect_near_all(losses, rest, tolerance);
      });
  }
}

TEST(Sharding, EvaluationIsThatOfOneRankWhateverTheNumberOfSequences) {
  const RunConfig config = sharded_config({"parallel.zero_stage=3"});
  for (const int64_t sequences : {1, 5, 12}) {
    double one = 0;
    for (const int ranks : {1, 3})
      run_ranks(ranks, [&](Host& host) {
        const Threads single{1};
        TinyTrainer t(config, host);
        const double loss = t.evaluate(tiny_samples(config), sequences);
        if (ranks == 1) one = loss;
        else EXPECT_NEAR(loss, one, 1e-6 * one) << sequences << " sequences, rank " << host.rank();
      });
  }
}

}  // namespace
}  // namespace octet::BACKEND
