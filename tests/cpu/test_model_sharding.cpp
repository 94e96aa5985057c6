// R ranks train the model of one: losses within 1e-6 for every stage of sharding and for hybrid sharding, the same bits
// from run to run, and a checkpoint of any number of ranks resumes on any other.
#include <algorithm>
#include <mutex>
#include <numeric>

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
Trained train(const RunConfig& config, int ranks, int64_t steps = 20) {
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

// Scales and histories, which are rank 0's to save and every rank's to resume.
Bits fp8_state(TinyTrainer& t) {
  Bits bits;
  if (!t.session.scaling.size()) return bits;
  keep_scales(bits, "activations", t.session.stream, t.session.scaling);
  keep_scales(bits, "weights", t.session.stream, t.session.params.weight_scales());
  return bits;
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
  for (const char* more : {"memory.recompute_blocks=0", "memory.recompute_blocks=2", "parallel.prefetch=0",
                           "parallel.prefetch=2", "parallel.prefetch=16"}) {
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

// What is computed at once, on whatever ranks, is the same sequences: the balancing loss of each
// micro-batch sees no difference.
TEST(Sharding, AMicroBatchIsTheSameSequencesOnAnyRanks) {
  const auto losses = [](int ranks) {
    RunConfig c = parse_config(R"({
      "device": "cpu",
      "model": {"model_type": "mixtral", "vocab_size": 120, "hidden_size": 32, "intermediate_size": 48,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
                "max_position_embeddings": 64, "initializer_range": 0.1, "router_aux_loss_coef": 0.5},
      "training": {"steps": 10, "global_batch_size": 12, "seq_len": 16, "seed": 3},
      "schedule": {"lr": 1e-2, "warmup_steps": 2},
      "precision": {"param_dtype": "fp32"},
      "checkpoint": {"dir": ""},
      "memory": {"plan_cache": "", "poison": true}})",
                               "balanced", {concat("training.micro_batch_size=", 4 / ranks)});
    return train(c, ranks, 5).losses;
  };
  const std::vector<double> one = losses(1);
  expect_near_all(losses(2), one, 1e-6);
  expect_near_all(losses(4), one, 1e-6);
}

// Where all ranks agree on scales, casts are those of one rank; what differs is the order of sums,
// which a cast may amplify.
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

// Which sequences each step took, whoever took them: with them the token ids, a function of the sequence alone.
class Taken {
 public:
  Samples watch(Samples inner) {
    Samples s = inner;
    s.batch = [this, inner](int64_t first, int64_t count) {
      const std::lock_guard lock(mutex_);
      for (int64_t i = first; i < first + count; ++i) sequences_.push_back(i);
      return inner.batch(first, count);
    };
    return s;
  }
  void expect_steps(int64_t first, int64_t last, int64_t sequences) {
    std::vector<int64_t> want(size_t((last - first) * sequences));
    std::iota(want.begin(), want.end(), first * sequences);
    std::sort(sequences_.begin(), sequences_.end());
    EXPECT_EQ(sequences_, want);
  }

 private:
  std::mutex mutex_;
  std::vector<int64_t> sequences_;
};

struct Resumed {
  int ranks;
  Changes changes;
};

TEST(Sharding, ACheckpointOfFourRanksResumesOnAnyNumberStageAndMicroBatch) {
  const Scratch folder;
  for (const char* format : {"precision.param_dtype=fp32", "fp8.enabled=true"})
    for (const auto& [saves, others] : std::vector<std::pair<Changes, std::vector<Resumed>>>{
             {{"parallel.zero_stage=3", "parallel.shard_degree=2"},
              {{1, {"training.micro_batch_size=4"}},
               {2, {"parallel.zero_stage=1", "training.micro_batch_size=3"}},
               {3, {"parallel.zero_stage=2"}},
               {4, {"parallel.zero_stage=3"}},
               {8, {"parallel.zero_stage=1", "training.micro_batch_size=3"}}}},
             {{"parallel.zero_stage=1"},
              {{1, {}},
               {2, {"parallel.zero_stage=3"}},
               {8, {"parallel.zero_stage=3", "parallel.shard_degree=4", "parallel.prefetch=2"}}}}}) {
      const Changes common{format, "training.global_batch_size=24", "fp8.amax_history_len=4",
                           concat("checkpoint.dir=", (folder / format / saves[0]).string())};
      const RunConfig config = sharded_config(with(common, saves));
      const double tolerance = config.fp8.enabled ? 1e-2 : 1e-6;
      const Trained never_stopped = train(config, 4, 6);
      const std::vector<double> rest(never_stopped.losses.begin() + 3, never_stopped.losses.end());
      std::string saved;
      Bits state;
      run_ranks(4, [&](Host& host) {
        const Threads one{1};
        TinyTrainer t(config, host);
        t.run(3);
        const std::string at = t.save();
        if (host.rank() == 0) saved = at, state = fp8_state(t);
      });
      EXPECT_EQ(state.empty(), !config.fp8.enabled);
      for (const Resumed& other : others) {
        const RunConfig resumed = sharded_config(with(common, other.changes));
        Taken taken;
        run_ranks(other.ranks, [&](Host& host) {
          const Threads one{1};
          TinyTrainer t(resumed, host);
          load_checkpoint(t, saved);
          expect_same(state, fp8_state(t));
          const std::vector<double> losses = t.run(3, taken.watch(tiny_samples(resumed)));
          if (host.rank() == 0) expect_near_all(losses, rest, tolerance);
        });
        taken.expect_steps(3, 6, 24);
      }
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
