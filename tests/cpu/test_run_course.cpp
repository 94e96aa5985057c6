// The course of a run: at which steps it saves, evaluates and ends, also where steps are skipped, and what a resume
// says of data that are not those of before.
#include "cpu/whole_run.h"
#include "data/checkpoints.h"
#include "host_wrapper.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

class Course : public WholeRun {
 protected:
  RunConfig saving(const Changes& changes) const {
    return config(
        with({concat("checkpoint.dir=", dir().string()), "checkpoint.every=3", "checkpoint.keep=0"}, changes));
  }
  fs::path dir() const { return folder_ / "run"; }
  std::vector<int64_t> saved() const {
    std::vector<int64_t> steps;
    for (const fs::path& p : complete_checkpoints(dir())) steps.push_back(checkpoint_step(p));
    return steps;
  }
  std::string warned(const RunConfig& c) const {
    testing::internal::CaptureStderr();
    train(c);
    return testing::internal::GetCapturedStderr();
  }
  std::string tokens_of(const char* name, uint64_t tokenizer) const {
    TokenFileWriter file(folder_ / name, {.vocab_size = 120, .tokenizer_fingerprint = tokenizer});
    file.begin_document();
    for (int32_t i = 0; i < 500; ++i) file.append(std::array{i % 120});
    file.finish();
    return concat("data.train=", (folder_ / name).string());
  }
};

// The first step's update makes weights of any size: no gradient that follows is finite.
const Changes kBreaks{"schedule.lr=1e30", "schedule.warmup_steps=0", "schedule.kind=constant"};

TEST_F(Course, SavesAndEvaluatesAtMultiplesWhereverItWasResumedAndStopsAfterSoManyStepsOfItsOwn) {
  const Changes evaluates{"training.eval_every=4", "data.validation_fraction=0.1", "training.steps=13"};
  const RunConfig c = saving(with(evaluates, {"training.stop_after=5"}));
  for (const auto& [last, evaluated] : std::map<int64_t, json>{{5, {4}}, {10, {8}}, {13, {12, 13}}}) {
    EXPECT_EQ(train(c).step, last);
    json steps;
    for (const json& record : logged("validation_loss")) steps.push_back(record["step"]);
    EXPECT_EQ(steps, evaluated);
  }
  EXPECT_EQ(saved(), (std::vector<int64_t>{3, 5, 6, 9, 10, 12, 13}));
}

TEST_F(Course, EndsAfterSoManySkippedStepsAndNotBefore) {
  const auto ends = [&](int64_t most) {
    const RunConfig c = config(with(kBreaks, {concat("training.max_skipped=", most)}));
    return error_of<Error>([&] {
      EXPECT_EQ(train(c).step, 5);
      throw Error("none");
    });
  };
  EXPECT_TRUE(has(ends(3), "steps 2 to 4 were all skipped (training.max_skipped)")) << ends(3);
  EXPECT_TRUE(has(ends(4), "steps 2 to 5 were all skipped (training.max_skipped)")) << ends(4);
  EXPECT_EQ(ends(5), "none");  // nor is a run that ends so one whose steps were all skipped
  EXPECT_EQ(ends(0), "none");  // 0: never
}

TEST_F(Course, EachSkippedStepIsSaidHoweverRarelyStepsAre) {
  testing::internal::CaptureStdout();
  train(config(with(kBreaks, {"log.every=1000"})));
  const std::string said = testing::internal::GetCapturedStdout();
  for (const char* line : {"step 2/5", "step 3/5", "step 4/5"}) EXPECT_TRUE(has(said, line)) << said;
  testing::internal::CaptureStdout();
  train(config({"log.every=1000"}));
  EXPECT_FALSE(has(testing::internal::GetCapturedStdout(), "step 3/5"));
}

// A dynamic scale that doubles after each good step soon overflows in every second one.
TEST_F(Course, AGoodStepBetweenSkippedOnesBeginsTheCountAnew) {
  const Changes scale{"precision.param_dtype=fp16", "precision.loss_scale=65536", "precision.loss_scale_growth_every=1",
                      "schedule.lr=1e-4"};
  const auto skipped = [&](const Changes& more) {
    train(config(with(scale, more)));
    std::vector<int64_t> all;
    for (const json& record : logged("skipped")) all.push_back(record["skipped"]);
    return all;
  };
  const std::vector<int64_t> all = skipped({"training.steps=24", "training.max_skipped=3"});
  ASSERT_EQ(all.size(), 24u);
  EXPECT_GE(all.back(), 5);
}

// What such a save would hold is saved already; with checkpoint.keep it would push out what the run can go back to.
TEST_F(Course, SavesNothingAnewWhileAllStepsAreSkipped) {
  const Changes each{"checkpoint.every=1", "checkpoint.keep=2", "checkpoint.buffer_gib=0"};
  train(saving(with(each, {"training.steps=3"})));
  EXPECT_EQ(saved(), (std::vector<int64_t>{2, 3}));
  const Changes breaks = with(with(each, kBreaks), {"training.steps=40", "training.max_skipped=6"});
  for (int again = 0; again < 3; ++again) {  // as a script would start it, over and over
    EXPECT_TRUE(has(error_of<Error>([&] { train(saving(breaks)); }), "were all skipped"));
    EXPECT_EQ(saved(), (std::vector<int64_t>{3, 4}));
  }
  const Changes third = with(breaks, {"checkpoint.every=3"});  // 4 is whole: what it made of the weights is saved at 6
  fs::remove_all(dir() / "step-00000004");
  EXPECT_TRUE(has(error_of<Error>([&] { train(saving(third)); }), "were all skipped"));
  EXPECT_EQ(saved(), (std::vector<int64_t>{3, 6}));
  fs::remove_all(dir() / "step-00000006");
  const TrainResult r = train(saving(with(each, {"training.steps=6"})));
  EXPECT_EQ(r.step, 6);
  EXPECT_EQ(saved(), (std::vector<int64_t>{5, 6}));
}

// Nor does one that a stop in their midst makes, or a signal that asks for it.
TEST_F(Course, ASaveAmidSkippedStepsTakesThePlaceOfTheOneWhoseWeightsItRepeats) {
  const Changes each{"checkpoint.every=1", "checkpoint.keep=2", "checkpoint.buffer_gib=0"};
  train(saving(with(each, {"training.steps=3"})));
  const auto stops = [&](int64_t after, const Changes& more) {
    return error_of<Error>([&] {
      train(
          saving(with(with(with(each, kBreaks), {"training.steps=40", concat("training.stop_after=", after)}), more)));
      throw Error("none");
    });
  };
  EXPECT_EQ(stops(3, {}), "none");  // 4 is good, and what it makes of the weights breaks the rest
  EXPECT_EQ(saved(), (std::vector<int64_t>{3, 6}));
  EXPECT_TRUE(has(stops(2, {}), "all 2 steps were skipped"));
  EXPECT_EQ(saved(), (std::vector<int64_t>{3, 8}));
  EXPECT_TRUE(has(stops(2, {"checkpoint.keep=0"}), "all 2 steps were skipped"));
  EXPECT_EQ(saved(), (std::vector<int64_t>{3, 8, 10}));
  const std::string elsewhere = folder_ / "elsewhere";  // where the same step is another run's
  fs::copy(dir(), elsewhere, fs::copy_options::recursive);
  EXPECT_TRUE(has(stops(2, {concat("checkpoint.resume=", elsewhere)}), "all 2 steps were skipped"));
  EXPECT_EQ(saved(), (std::vector<int64_t>{10, 12}));
}

// It is of weights from before them. A save is completed at the second step after its own, if not waited for.
TEST_F(Course, ASaveUnderWayIsFinishedBeforeSkippedStepsEndTheRun) {
  const Changes at_once = with(kBreaks, {"checkpoint.every=1", "training.max_skipped=1"});
  const auto ends = [&](const Changes& changes, Host& host) {
    testing::internal::CaptureStderr();
    const std::string said = error_of<Error>([&] { train(saving(changes), host); });
    EXPECT_TRUE(has(said, "steps 2 to 2 were all skipped")) << said;
    return testing::internal::GetCapturedStderr();
  };
  LoneHost lone;
  EXPECT_EQ(ends(at_once, lone), "");
  EXPECT_EQ(saved(), std::vector<int64_t>{1});
  run_ranks(2, [&](Host& host) {
    const std::string said = error_of<Error>([&] { train(saving(with(at_once, {"checkpoint.resume=none"})), host); });
    EXPECT_TRUE(has(said, "steps 2 to 2 were all skipped")) << said;
  });
  EXPECT_EQ(saved(), std::vector<int64_t>{1});

  struct Losing : HostWrapper {  // the folder that is written, at the boundary of the second step (Run::meet)
    Losing(Host& host, fs::path from, fs::path to) : HostWrapper(host), from_(std::move(from)), to_(std::move(to)) {}
    void all_gather(void* all, const void* mine, size_t bytes) override {
      if (bytes == 3 && ++steps_ == 2) fs::rename(from_, to_);
      HostWrapper::all_gather(all, mine, bytes);
    }
    const fs::path from_, to_;
    int steps_ = 0;
  };
  fs::remove_all(dir());
  Losing losing(lone, dir() / ".saving-00000001", folder_ / "lost");
  const std::string told = ends(at_once, losing);
  EXPECT_TRUE(has(told, "step 1 is not saved: ") && has(told, "; the run ends. Nothing is saved yet")) << told;
  EXPECT_TRUE(saved().empty());
}

TEST_F(Course, AResumeOnOtherDataOrInAnotherOrderWarns) {
  train(saving({}));
  EXPECT_EQ(warned(saving({"training.steps=6"})), "");
  const std::string order = warned(saving({"training.steps=7", "data.shuffle=false"}));
  EXPECT_TRUE(has(order, "training data or its order differs") && has(order, "sample 24 of the new data comes next"))
      << order;
  const std::string files = warned(saving({"training.steps=8", "data.shuffle=false", concat("data.train=", a_)}));
  EXPECT_TRUE(has(files, "training data or its order differs")) << files;
  EXPECT_EQ(warned(saving({"training.steps=9", "data.shuffle=false", concat("data.train=", a_)})), "");
}

TEST_F(Course, AResumeWithOtherValidationDataWarns) {
  const auto on = [&](const char* steps, const std::string& file) {
    return saving({steps, "training.eval_every=2", concat("data.validation=", file)});
  };
  train(on("training.steps=5", a_));
  EXPECT_EQ(warned(on("training.steps=6", a_)), "");
  EXPECT_TRUE(has(warned(on("training.steps=7", b_)), "the validation data differs from that of "));
  EXPECT_EQ(warned(on("training.steps=8", b_)), "");
}

TEST_F(Course, AResumeOnTokensOfAnotherTokenizerIsRefused) {
  train(saving({tokens_of("seven", 7)}));
  const auto refused = [&](const std::string& data, const char* steps) {
    return error_of<InputError>([&] { train(saving({data, steps})); });
  };
  EXPECT_TRUE(has(refused(tokens_of("eight", 8), "training.steps=6"), "tokens of a different tokenizer"));
  EXPECT_EQ(train(saving({tokens_of("seven", 7), "training.steps=6"})).step, 6);
  EXPECT_EQ(train(saving({tokens_of("unknown", 0), "training.steps=7"})).step, 7);
}

TEST_F(Course, AResumeBeyondTheEndIsRefused) {
  train(saving({}));
  EXPECT_EQ(train(saving({})).step, 5);  // all is done
  const std::string said = error_of<InputError>([&] { train(saving({"training.steps=4"})); });
  EXPECT_TRUE(has(said, "step-00000005 is at step 5, beyond training.steps 4")) << said;
}

}  // namespace
}  // namespace octet::BACKEND
