// What a resumed run begins with, where its checkpoint lacks something or the run is another: counters, scales, links.
#include <algorithm>

#include "base/json.h"
#include "cpu/tiny_model.h"
#include "data/scratch.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {
namespace fs = std::filesystem;

class Resume : public testing::Test {
 protected:
  RunConfig config(const Changes& changes = {}) const {
    return tiny_config(with({concat("checkpoint.dir=", (folder_ / "run").string())}, changes));
  }
  static Changes fp8(const Changes& more) {
    return with({"precision.param_dtype=bf16", "fp8.enabled=true", "fp8.amax_history_len=4"}, more);
  }
  const Threads one_{1};
  const Scratch folder_;
};

// Whatever the config of the run that saved it makes of steps.
TEST_F(Resume, CountersAndFingerprintsComeBackAsTheyWere) {
  TinyTrainer t(config()), other(config());
  RunState state{.done = {.step = 3, .samples = 17, .tokens = 999},
                 .counters = {},
                 .data = 0x123456789abcdef0,
                 .tokenizer = ~uint64_t{0},
                 .fallbacks = {"a.b", "c"}};
  state.counters.updates = 2, state.counters.skipped = 5;
  const RunState back = load_checkpoint(other, t.save(state));
  for (const Done& done : {back.done, other.done()}) {
    EXPECT_EQ(done.step, 3);
    EXPECT_EQ(done.samples, 17);
    EXPECT_EQ(done.tokens, 999);
  }
  for (const StepState& counters : {back.counters, other.state()}) {
    EXPECT_EQ(counters.updates, 2u);
    EXPECT_EQ(counters.skipped, 5u);
  }
  EXPECT_EQ(back.data, state.data);
  EXPECT_EQ(back.tokenizer, state.tokenizer);
  EXPECT_EQ(back.fallbacks, state.fallbacks);
  EXPECT_EQ(back.tokens_per_step, 4 * 16);
}

TEST_F(Resume, TokensAreThoseOfAllRanks) {
  run_ranks(2, [&](Host& host) {
    TinyTrainer t(config(), host);
    t.run(2);
    EXPECT_EQ(t.done().samples, 2 * 4);
    EXPECT_EQ(t.done().tokens, 2 * 4 * 16);
    EXPECT_EQ(t.report(2).tokens, 2 * 4 * 16);
  });
}

// Nothing of it is a sum over the steps of a process.
TEST_F(Resume, AStepIsReportedAsItIsWithoutTheStepsBefore) {
  const RunConfig c = config({"model.model_type=mixtral", "model.num_local_experts=3"});
  TinyTrainer whole(c), resumed(c);
  whole.run(3);
  load_checkpoint(resumed, whole.save());
  whole.run(1), resumed.run(1);
  const StepReport a = whole.report(4), b = resumed.report(4);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.lr, b.lr);
  EXPECT_EQ(a.state.aux, b.state.aux);
  EXPECT_EQ(a.state.z, b.state.z);
  EXPECT_EQ(a.state.norm, b.state.norm);
  EXPECT_EQ(a.expert_load, b.expert_load);
  EXPECT_GT(a.state.aux, 1);
}

// Also where only wgrad is in FP8, and weights have no scale.
TEST_F(Resume, WhicheverProductsAreInFp8) {
  for (const char* kept : {"[true,true,false]", "[true,false,false]", "[false,true,false]", "[false,false,true]"}) {
    const RunConfig c = config(fp8({concat("fp8.override_linear_precision=", kept)}));
    TinyTrainer whole(c), resumed(c);
    whole.run(3);
    load_checkpoint(resumed, whole.save());
    expect_same(bits_of(resumed), bits_of(whole));
    EXPECT_EQ(resumed.session.params.weight_scales().updates(), whole.session.params.weight_scales().updates());
    whole.run(2), resumed.run(2);
    expect_same(bits_of(resumed), bits_of(whole));
  }
}

// A slot whose only maximum was infinite is still cold, however many updates there were; and the count says of it.
TEST_F(Resume, ASlotThatIsStillColdStaysSo) {
  const RunConfig c = config(fp8({"fp8.update_every=step"}));
  TinyTrainer whole(c), resumed(c);
  DelayedScaling& scaling = whole.session.scaling;
  scaling.state().amax.ptr<uint32_t>()[3] = std::bit_cast<uint32_t>(INFINITY);
  whole.run(1);
  load_checkpoint(resumed, whole.save());
  expect_same(bits_of(resumed), bits_of(whole));
  const auto then = resumed.session.scaling.save(resumed.session.stream);
  ASSERT_EQ(then.updates, 1);
  for (int i = 0; i < scaling.size(); ++i) {
    const DelayedScaling& other = resumed.session.scaling;
    EXPECT_EQ(scaling.measures_first(scaling.measured(i)), i == 3) << scaling.names()[size_t(i)];
    EXPECT_EQ(other.measures_first(other.measured(i)), i == 3) << scaling.names()[size_t(i)];
    EXPECT_EQ(then.nonfinite[size_t(i)], i == 3 ? 1u : 0u);
  }
  whole.run(2), resumed.run(2);
  expect_same(bits_of(resumed), bits_of(whole));
}

// Adam's first update is of the size of the learning rate; moments that are zero after many are not divided so.
TEST_F(Resume, WithoutMomentsTheNextUpdateIsTheFirst) {
  const RunConfig c = config({"optimizer.weight_decay=0", "schedule.warmup_steps=0", "schedule.kind=constant"});
  TinyTrainer t(c), other(c);
  t.run(4);
  const fs::path at = t.save();
  fs::remove(at / "optimizer.safetensors");
  fs::remove(at / "checksums.json");  // it goes on purpose
  load_checkpoint(other, at);
  const Bits before = weight_bits(other.session.params);
  other.run(1);
  EXPECT_EQ(other.state().updates, 1u);
  const Bits after = weight_bits(other.session.params);
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const size_t n = before.at(name).size() / sizeof(float);
  size_t whole = 0;
  for (size_t i = 0; i < n; ++i) {
    float x, y;
    std::memcpy(&x, &before.at(name)[i * sizeof x], sizeof x);
    std::memcpy(&y, &after.at(name)[i * sizeof y], sizeof y);
    whole += std::abs(std::abs(double(y) - double(x)) / c.schedule.lr - 1) < 1e-3;
  }
  EXPECT_GT(whole, n * 9 / 10);
}

// Weights of the same shapes under another meaning are not refused, for a longer context is a use of it; but told of.
TEST_F(Resume, AnotherModelOfTheSameShapesIsToldOf) {
  const auto said = [&](const RunConfig& c, const fs::path& at) {
    testing::internal::CaptureStderr();
    TinyTrainer t(c);
    load_checkpoint(t, at);
    return testing::internal::GetCapturedStderr();
  };
  TinyTrainer t(config());
  t.run(1);
  const fs::path at = t.save();
  EXPECT_EQ(said(config(), at), "");
  EXPECT_EQ(said(config({"model.max_position_embeddings=1024"}), at), "");
  const std::string base = said(config({"model.rope_theta=500000"}), at);
  EXPECT_TRUE(has(base, "rope_theta was 10000") && has(base, "is 500000")) << base;
  EXPECT_TRUE(has(said(config({"model.rms_norm_eps=0.001"}), at), "model.rms_norm_eps was ")) << base;
  const std::string heads = said(config({"model.num_attention_heads=2", "model.num_key_value_heads=1"}), at);
  EXPECT_TRUE(has(heads, "model.num_attention_heads was 4 and is 2")) << heads;

  const auto once = [](const std::string& text, const char* part) {
    return has(text, part) && std::count(text.begin(), text.end(), '\n') == 1;
  };
  const RunConfig windowed = config({"model.sliding_window=8", "checkpoint.keep=0"});  // transformers calls it Mistral
  const std::string window = said(windowed, at);
  EXPECT_TRUE(once(window, "step-00000001: model.sliding_window was 0 and is 8 now")) << window;
  TinyTrainer narrow(windowed);
  narrow.run(4);
  const std::string wide = said(config(), narrow.save());
  EXPECT_TRUE(once(wide, "step-00000004: model.sliding_window was 8 and is 0 now")) << wide;

  const Changes neox{"model.model_type=gpt_neox", "model.num_key_value_heads=4", "checkpoint.keep=0"};
  TinyTrainer exact(config(neox));
  exact.run(5);
  const std::string act = said(config(with(neox, {"model.hidden_act=gelu_new"})), exact.save());
  EXPECT_TRUE(once(act, "model.hidden_act was \"gelu\" and is \"gelu_new\" now")) << act;

  const RunConfig longer = config({"model.rope_type=linear", "model.rope_factor=4"});
  const std::string added = said(longer, at);
  EXPECT_TRUE(has(added, "model.rope_scaling was null and is {")) << added;
  TinyTrainer scaled(longer);
  scaled.run(2);
  const std::string dropped = said(config(), scaled.save());
  EXPECT_TRUE(has(dropped, "model.rope_scaling was {") && has(dropped, "and is null")) << dropped;

  const Changes experts{"model.model_type=mixtral", "model.num_local_experts=3"};
  TinyTrainer mixtral(config(experts));
  mixtral.run(3);
  const std::string chosen = said(config(with(experts, {"model.num_experts_per_tok=1"})), mixtral.save());
  EXPECT_TRUE(has(chosen, "model.num_experts_per_tok was 2 and is 1")) << chosen;
}

// Not the checkpoint is wrong, whose config.json describes its weights, but the run's config: that is what is said, and
// on all ranks the same.
TEST_F(Resume, AnotherModelOfOtherShapesIsRefusedByTheOptionsThatDiffer) {
  const auto refused = [&](const Changes& changes, const fs::path& at) {
    std::array<std::string, 2> said;
    run_ranks(2, [&](Host& host) {
      TinyTrainer t(config(changes), host);
      said[size_t(host.rank())] = error_of<InputError>([&] { load_checkpoint(t, at); });
    });
    EXPECT_EQ(said[0], said[1]);
    return said[0];
  };
  const Changes tied{"model.tie_word_embeddings=true"};
  TinyTrainer t(config()), with_one_table(config(tied));
  t.run(1), with_one_table.run(2);
  const fs::path own_head = t.save(), no_head = with_one_table.save();
  const std::string from = own_head.string() + " holds another model than this run's: model.";
  const std::string tie = refused(tied, own_head), untie = refused({}, no_head),
                    wider = refused({"model.hidden_size=64"}, own_head);
  EXPECT_TRUE(has(tie, from + "tie_word_embeddings was false and is true. Give the model that was saved; or ")) << tie;
  EXPECT_TRUE(has(untie, "model.tie_word_embeddings was true and is false. ")) << untie;
  EXPECT_TRUE(has(wider, "model.hidden_size was 32 and is 64, model.head_dim was 8 and is 16. ")) << wider;

  const std::string other = refused({"model.model_type=gpt_neox", "model.num_key_value_heads=4"}, own_head);
  EXPECT_TRUE(has(other, from + "model_type was \"llama\" and is \"gpt_neox\". ")) << other;
}

TEST_F(Resume, WithoutFp8StateItSaysWhatScalesStartWith) {
  TinyTrainer t(config());
  t.run(1);
  const fs::path at = t.save();
  for (const auto& [start, how] : {std::pair{"current", "every scale starts cold, measured on its first use"},
                                   {"one", "scales that come from a history start at 1 (fp8.cold_start)"}}) {
    TinyTrainer other(config(fp8({concat("fp8.cold_start=", start)})));
    testing::internal::CaptureStderr();
    load_checkpoint(other, at);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(has(said, concat("step-00000001 has no FP8 state: ", how))) << said;
    const DelayedScaling& scaling = other.session.scaling;
    EXPECT_EQ(scaling.measures_first(scaling.measured(0)), start == std::string("current"));
  }
}

// A slot that the checkpoint did not have begins cold, at whatever point of fp8.interval the others are.
TEST_F(Resume, ANewSlotFitsItsScaleAtOnce) {
  TinyTrainer old(config(fp8({"fp8.exclude=[\"*.down_proj\"]", "fp8.interval=8", "fp8.update_every=step"})));
  old.run(2);
  TinyTrainer t(config(fp8({"fp8.interval=8", "fp8.update_every=step"})));
  load_checkpoint(t, old.save());
  t.run(1);
  const auto scales = t.session.scaling.save(t.session.stream);
  for (size_t i = 0; i < scales.names.size(); ++i) {
    const float newest = scales.rows[scales.rows.size() - scales.names.size() + i];
    ASSERT_GT(newest, 0) << scales.names[i];
    const float fitted = scales.largest[i] / newest;
    if (has(scales.names[i], "down_proj")) { EXPECT_FLOAT_EQ(scales.scale[i], fitted) << scales.names[i]; }
  }
}

// A checkpoint kept elsewhere, and linked to: the link may be dropped, not what it leads to.
TEST_F(Resume, WhatALinkLeadsToIsNotHarmed) {
  TinyTrainer t(config({"checkpoint.keep=1"}));
  t.run(1);
  const fs::path link = t.save(), archive = folder_ / "archive";
  fs::rename(link, archive);
  fs::create_directory_symlink(archive, link);
  EXPECT_EQ(newest_checkpoint(folder_ / "run"), link);
  t.run(1);
  t.save();
  EXPECT_FALSE(fs::exists(fs::symlink_status(link)));
  TinyTrainer other(config());
  EXPECT_EQ(load_checkpoint(other, archive).done.step, 1);
}

TEST_F(Resume, AStateWithoutTheOldConfigIsRead) {
  TinyTrainer t(config());
  t.run(1);
  const fs::path file = fs::path(t.save()) / "state.json";
  fs::remove(file.parent_path() / "checksums.json");
  const json whole = read_json(file.string());
  EXPECT_EQ(load_checkpoint(t, file.parent_path()).tokens_per_step, 64);
  for (const json& other : {json(), json(7), json{{"training", 3}}, json{{"training", {{"seq_len", "x"}}}},
                            json{{"training", {{"global_batch_size", INT64_MAX}, {"seq_len", INT64_MAX}}}}}) {
    json state = whole;
    state["config"] = other;
    write_file(file, state.dump());
    EXPECT_EQ(load_checkpoint(t, file.parent_path()).tokens_per_step, 0) << other;
  }
}

// Checkpoints of before tokens were counted: what they hold was trained at their own length.
TEST_F(Resume, TokensThatWereNotCountedAreThoseOfTheOldLength) {
  TinyTrainer t(config()), longer(config({"training.seq_len=32", "training.global_batch_size=2"}));
  t.run(3);
  const fs::path file = fs::path(t.save()) / "state.json";
  EXPECT_EQ(load_checkpoint(longer, file.parent_path()).done.tokens, 3 * 4 * 16);
  fs::remove(file.parent_path() / "checksums.json");
  json state = read_json(file.string());
  state.erase("tokens");
  write_file(file, state.dump());
  const Done done = load_checkpoint(longer, file.parent_path()).done;
  EXPECT_EQ(done.samples, 3 * 4);
  EXPECT_EQ(done.tokens, 3 * 4 * 16);
}

}  // namespace
}  // namespace octet::BACKEND
