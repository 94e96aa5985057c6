// parallel.check_every and every save: one bit that differs between ranks is found, and named with the ranks.
#include "cpu/tiny_model.h"
#include "data/scratch.h"
#include "ranks.h"
#include "train/agreement.h"

namespace octet::BACKEND {
namespace {

// What the check says on each rank when `rank` has flipped a bit of the thing `name`.
void expect_found(int ranks, const Changes& changes, const std::string& name, int rank, const std::string& who) {
  run_ranks(ranks, [&](Host& host) {
    const Threads one{1};
    TinyTrainer t(tiny_config(with({"training.global_batch_size=12", "training.micro_batch_size=1"}, changes)), host);
    t.run(2);
    EXPECT_NO_THROW(check_agreement(t.session));
    bool flipped = false;
    const auto flip = [&](const std::string& thing, Tensor x, auto) {
      if (thing != name || x.numel() == 0) return;
      flipped = true;
      if (host.rank() == rank) static_cast<uint8_t*>(x.data)[x.bytes() - 1] ^= 1;
    };
    t.session.params.for_each_common(t.session.stream, flip);
    if (t.session.scaling.size()) {
      flip("FP8 scales of activations", t.session.scaling.state().scale, 0);
      flip("FP8 histories of activations", t.session.scaling.state().history, 0);
      flip("FP8 histories of weights", t.session.params.weight_scales().state().history, 0);
    }
    ASSERT_TRUE(flipped) << name;
    const std::string said = error_of<SystemError>([&] { check_agreement(t.session); });
    EXPECT_TRUE(has(said, name + " is not the same on all ranks: " + who + " (")) << said;
  });
}

TEST(Agreement, ADifferenceInWholeWeightsIsFound) {
  for (const char* stage : {"parallel.zero_stage=1", "parallel.zero_stage=2"})
    expect_found(3, {stage}, "model.layers.1.mlp.down_proj.weight", 1, "ranks 0 and 2 against rank 1");
  expect_found(4, {"parallel.zero_stage=1"}, "model.embed_tokens.weight", 0, "rank 0 against ranks 1, 2 and 3");
  expect_found(2, {"fp8.enabled=true", "precision.param_dtype=bf16"}, "model.layers.0.mlp.down_proj.weight", 1,
               "rank 0 against rank 1");
}
TEST(Agreement, ADifferenceInScalesIsFound) {
  const Changes fp8{"fp8.enabled=true", "precision.param_dtype=bf16", "parallel.zero_stage=3"};
  expect_found(3, fp8, "FP8 scales of weights", 2, "ranks 0 and 1 against rank 2");
  expect_found(3, fp8, "FP8 scales of activations", 1, "ranks 0 and 2 against rank 1");
  expect_found(3, fp8, "FP8 histories of activations", 0, "rank 0 against ranks 1 and 2");
  expect_found(2, with(fp8, {"fp8.weight_scaling=delayed"}), "FP8 histories of weights", 1, "rank 0 against rank 1");
}
TEST(Agreement, ADifferenceBetweenReplicasOfASliceIsFound) {
  expect_found(2, {"parallel.zero_stage=0"}, "model.norm.weight.master", 1, "rank 0 against rank 1");
  expect_found(4, {"parallel.zero_stage=3", "parallel.shard_degree=2"}, "model.embed_tokens.weight.v", 3,
               "rank 1 against rank 3");
}

TEST(Agreement, ASaveNamesTheScaleThatDiffersAndHarmsNothing) {
  const Scratch folder;
  const RunConfig config =
      tiny_config({"fp8.enabled=true", "precision.param_dtype=bf16", "fp8.amax_history_len=4",
                   "fp8.weight_scaling=delayed", "training.global_batch_size=12", "training.micro_batch_size=1",
                   concat("checkpoint.dir=", (folder / "run").string())});
  run_ranks(3, [&](Host& host) {
    const Threads one{1};
    TinyTrainer t(config, host);
    t.run(2);
    const std::string before = t.save();
    t.run(1);
    for (DelayedScaling* scales : {&t.session.scaling, &t.session.params.weight_scales()}) {
      const int64_t S = scales->size();
      const ScaleState& state = scales->state();
      for (uint32_t* bits : {static_cast<uint32_t*>(state.scale.data) + 4 * (S - 1),
                             static_cast<uint32_t*>(state.history.data) + 2 * S - 1,
                             static_cast<uint32_t*>(state.nonfinite.data) + S - 1}) {
        if (host.rank() == 1) *bits ^= 1;
        const std::string said = error_of<SystemError>([&] { t.save(); });
        if (host.rank() == 1) *bits ^= 1;
        EXPECT_TRUE(has(said, scales->names().back() + " is not the same on all ranks: ranks 0 and 2 against rank 1:"))
            << said;
        EXPECT_EQ(newest_checkpoint(folder / "run"), before);
        EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "run"), {}), 1);  // nothing half-written
      }
    }
    const std::string after = t.save();
    EXPECT_EQ(newest_checkpoint(folder / "run"), after);
    EXPECT_NE(after, before);
  });
}

}  // namespace
}  // namespace octet::BACKEND
