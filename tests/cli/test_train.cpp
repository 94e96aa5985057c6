// From text to a resumed run, by the commands alone; and what ends or damages a run.
#include "cli/tiny_run.h"

namespace octet {

TEST(Train, LearnsFromTextAndSaves) {
  const TinyRun tiny;
  const Ran r = tiny.train({"training.steps=30", "checkpoint.every=0", "data.validation_fraction=0.1"});
  expect_done(r, {"step 30/30", "validation loss", "saved " + tiny.path("run/step-00000030")});
  const std::vector<double> losses = tiny.losses();
  ASSERT_EQ(losses.size(), 30u);
  EXPECT_LT(losses.back(), losses.front() - 0.5);
}

TEST(Train, FivePlusFiveStepsAreTen) {
  const TinyRun whole, parts;
  expect_done(whole.train());
  expect_done(parts.train({"training.stop_after=5"}), {"step-00000005"});
  expect_done(parts.train(), {"resumed from " + parts.path("run/step-00000005")});
  EXPECT_EQ(whole.losses(), parts.losses());
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(read_file(whole.path("run/step-00000010/") + file) ==
                read_file(parts.path("run/step-00000010/") + file))
        << file;
  expect_done(parts.train({"--resume", parts.path("run/step-00000005"), "training.steps=6"}), {"step 6/6"});
  const TinyRun next;  // the folder of a run stands for its newest checkpoint
  expect_done(next.train({"--resume", parts.path("run"), "training.steps=12"}),
              {"resumed from " + parts.path("run/step-00000010"), "step 12/12"});
  expect_refused(parts.train({"training.steps=3"}), {"step-00000010", "training.steps 3", "--resume none"});
}

TEST(Train, NeedsNoValidationFileIfItEvaluatesNothing) {
  const TinyRun tiny;
  const std::string missing = "data.validation=" + tiny.path("missing.tokens");
  expect_refused(tiny.train({missing}), {"data.validation", "missing.tokens"});
  expect_done(tiny.train({missing, "training.eval_sequences=0"}), {"step 10/10"});
}

// Each checkpoint is of its own step, although training went on while it was written.
TEST(Train, SavesInTheBackgroundAreThoseThatTrainingWaitsFor) {
  for (const char* ranks : {"1", "2"}) {
    const TinyRun waits, goes_on;
    const auto run = [&](const TinyRun& tiny, const std::string& buffer) {
      expect_done(tiny.train({"checkpoint.every=1", "checkpoint.keep=0", "checkpoint.buffer_gib=" + buffer, "--ranks",
                              ranks, "parallel.zero_stage=2"}),
                  {"saved " + tiny.path("run/step-00000001"), "saved " + tiny.path("run/step-00000010")});
    };
    run(waits, "0"), run(goes_on, "-1");
    for (int step = 1; step <= 10; ++step)
      for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
        const std::string name = concat("run/step-", step < 10 ? "0000000" : "000000", step, "/", file);
        EXPECT_TRUE(read_file(waits.path(name)) == read_file(goes_on.path(name))) << name << ", " << ranks << " ranks";
      }
  }
}

TEST(Train, RanksAsThreads) {
  const TinyRun tiny;
  expect_done(tiny.train({"--ranks", "2", "parallel.zero_stage=3"}), {"2 ranks", "step 10/10"});
}

TEST(Train, Fp16ShowsItsLossScale) {
  const TinyRun tiny;
  expect_done(tiny.train({"precision.param_dtype=fp16", "precision.loss_scale=128",
                          "precision.loss_scale_growth_every=4", "checkpoint.every=0"}),
              {"step 10/10", "loss scale 512"});
  std::istringstream lines(read_file(tiny.path("metrics.jsonl")));
  std::vector<double> scales;
  for (std::string line; std::getline(lines, line);)
    if (const json record = json::parse(line); record.contains("loss_scale")) scales.push_back(record["loss_scale"]);
  EXPECT_EQ(scales, (std::vector<double>{128, 128, 128, 256, 256, 256, 256, 512, 512, 512}));
  EXPECT_LT(tiny.losses().back(), tiny.losses().front());
}

TEST(Train, AHalfWrittenCheckpointIsNotResumed) {
  const TinyRun tiny;
  expect_done(tiny.train());
  std::filesystem::remove(tiny.path("run/step-00000010/COMPLETE"));
  expect_refused(tiny.train({"--resume", tiny.path("run/step-00000010")}), {"step-00000010", "COMPLETE", "older"});
  expect_done(tiny.train(), {"resumed from " + tiny.path("run/step-00000005")});
  expect_refused(tiny.train({"--resume", tiny.path("nowhere")}), {"nowhere", "no such checkpoint"});
}

TEST(Train, DamagedCheckpointsAreRefused) {
  const TinyRun tiny;
  expect_done(tiny.train());
  const std::string folder = tiny.path("run/step-00000010/");
  const std::string weights = read_file(folder + "model.safetensors"), state = read_file(folder + "state.json");
  write_file(folder + "model.safetensors", weights.substr(0, weights.size() - 1000));
  expect_refused(tiny.train({"training.steps=12"}), {"model.safetensors"});
  write_file(folder + "model.safetensors", weights);
  write_file(folder + "state.json", "{}");
  expect_refused(tiny.train({"training.steps=12"}), {"state.json", "missing"});
  write_file(folder + "state.json", state);
  expect_refused(tiny.train({"training.steps=12", "model.num_hidden_layers=3"}),
                 {"model.num_hidden_layers was 2 and is 3"});
  expect_done(tiny.train({"training.steps=12"}), {"step 12/12"});
}

TEST(Train, BadTokenFiles) {
  const TinyRun tiny;
  const std::string tokens = read_file(tiny.path("train.tokens"));
  const auto with = [&](const std::string& contents) {
    tiny.folder().write("bad.tokens", contents);
    return tiny.train({"data.train=" + tiny.path("bad.tokens")});
  };
  expect_refused(with(tokens.substr(0, tokens.size() / 2)), {"bad.tokens"});
  expect_refused(
      with("this is text, not tokens, and it is long enough to hold a header of one hundred and twenty-eight "
           "bytes, which a token file begins with"),
      {"bad.tokens", "octet tokenize"});
  expect_refused(with(""), {"bad.tokens"});
  expect_refused(tiny.train({"model.vocab_size=300"}), {"train.tokens", "400", "300"});
  EXPECT_FALSE(std::filesystem::exists(tiny.path("run")));
}

TEST(Train, AnotherTokenizerIsRefused) {
  const TinyRun tiny;
  expect_done(tiny.train());
  expect_done(
      octet_says({"tokenizer", "--input", small_text(), "--vocab-size", "390", "--out", tiny.path("other.model")}));
  expect_done(octet_says({"tokenize", "--tokenizer", tiny.path("other.model"), "--input", small_text(), "--out",
                          tiny.path("other.tokens")}));
  expect_refused(tiny.train({"training.steps=12", "data.train=" + tiny.path("other.tokens")}), {"not the tokenizer"});
  expect_refused(tiny.train({"training.steps=12", "data.validation=" + tiny.path("other.tokens")}),
                 {"data.validation", "other.tokens", "another tokenizer", "train.tokens"});
}

TEST(Train, ATokenizerThatCannotBeKeptIsToldBeforeTheFirstStep) {
  const TinyRun tiny;
  std::filesystem::create_directory(tiny.path("empty"));
  const Ran folder = tiny.train({"data.tokenizer=" + tiny.path("empty")});
  expect_refused(folder, {tiny.path("empty"), "neither tokenizer.model nor tokenizer.json", "name a file"});
  EXPECT_FALSE(has(folder.out, "step 1/")) << folder;
  const Ran none = tiny.train({"data.tokenizer=" + tiny.path("none.model"), "training.eval_every=5"});
  expect_done(none, {"step 10/10"});
  EXPECT_TRUE(has(none.err, "none.model") && has(none.err, "training.eval_every (5) is not used")) << none;
  EXPECT_FALSE(std::filesystem::exists(tiny.path("run/step-00000010/tokenizer.model")));
  expect_done(tiny.train({"data.tokenizer=" + tiny.path(""), "checkpoint.dir=" + tiny.path("kept")}));  // its folder
  EXPECT_TRUE(std::filesystem::exists(tiny.path("kept/step-00000010/tokenizer.model")));
}

TEST(Train, AnotherBatchSizeGoesOnWithTheNextSampleAndIsSaid) {
  const TinyRun tiny;
  expect_done(tiny.train({"training.stop_after=5"}));
  const Ran r = tiny.train({"training.global_batch_size=8"});
  expect_done(r, {"step 10/10"});
  EXPECT_TRUE(has(r.err, "trained with 128 tokens a step, this run takes 256")) << r;
  std::istringstream lines(read_file(tiny.path("metrics.jsonl")));
  std::vector<int64_t> tokens;
  for (std::string line; std::getline(lines, line);) tokens.push_back(json::parse(line).value("tokens", int64_t{0}));
  EXPECT_EQ(tokens, (std::vector<int64_t>{128, 256, 384, 512, 640, 896, 1152, 1408, 1664, 1920}));
  const Ran same = tiny.train({"training.global_batch_size=8", "training.steps=11"});
  EXPECT_FALSE(has(same.err, "tokens a step")) << same;
}

// 1280 tokens are ten steps of 128; after five of them, 640 tokens are left: two steps of 256 and a last one.
TEST(Train, ARunOfTokensTakesThoseTokensWhateverItsBatches) {
  const TinyRun tiny;
  const std::vector<std::string> length{"training.steps=0", "training.tokens=1280", "schedule.kind=linear",
                                        "schedule.min_lr=0", "schedule.warmup_steps=0"};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> all = length;
    all.push_back(more);
    return tiny.train(all);
  };
  expect_done(with("training.stop_after=5"), {"step 5/10"});
  const Ran r = with("training.global_batch_size=8");
  expect_done(r, {"step 8/8"});
  EXPECT_TRUE(has(r.err, "step 8 reaches training.tokens")) << r;
  std::istringstream lines(read_file(tiny.path("metrics.jsonl")));
  std::vector<int64_t> tokens;
  std::vector<double> lr;
  for (std::string line; std::getline(lines, line);) {
    tokens.push_back(json::parse(line)["tokens"]);
    lr.push_back(json::parse(line)["lr"]);
  }
  EXPECT_EQ(tokens, (std::vector<int64_t>{128, 256, 384, 512, 640, 896, 1152, 1408}));
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(lr[i], 1e-2 * (1 - double(i) / 9), 1e-12);
  for (size_t i = 5; i < 8; ++i) EXPECT_NEAR(lr[i], 1e-2 * (1 - double(i - 3) / 4), 1e-12);  // of five steps of 256
  expect_done(octet_says({"inspect", tiny.path("run")}), {"44 sequences, 1,408 tokens"});
  expect_done(with("training.global_batch_size=8"), {"all 8 steps are done"});
}

TEST(Train, ARunWhoseStepsAreAllSkippedFails) {
  const TinyRun tiny;
  const auto run = [&](const std::string& scaling, const std::string& more) {  // gradients overflow
    return tiny.train({"precision.param_dtype=fp16", "precision.loss_scaling=" + scaling, "precision.loss_scale=1e9",
                       "log.file=", more});
  };
  const Ran few = run("static", "training.steps=3");
  EXPECT_EQ(few.code, 1) << few;
  EXPECT_TRUE(has(few.err, "octet: all 3 steps were skipped: ") && has(few.err, "schedule.lr")) << few;
  const Ran many = run("static", "training.max_skipped=4");
  EXPECT_EQ(many.code, 1) << many;
  EXPECT_TRUE(has(many.err, "octet: steps 4 to 7 were all skipped (training.max_skipped): "))
      << many;  // from step 3 on
  EXPECT_EQ(run("static", "training.max_skipped=0").code, 1);
  expect_done(run("dynamic", "checkpoint.dir="), {"step 10/10", "SKIPPED"});  // on its way down
}

// The disk fills up under way: here a file may grow to 1 KiB.
TEST(Train, ALogThatCanGrowNoMoreEndsNoRun) {
  const TinyRun tiny;
  std::string command = "trap '' XFSZ; ulimit -f 1; exec";
  for (const std::string& word : tiny.words({"log.level=warning", "checkpoint.dir="})) command += " '" + word + "'";
  const Ran r = run({"bash", "-c", command});
  expect_done(r);
  EXPECT_GE(tiny.losses().size(), 2u);
  EXPECT_LT(tiny.losses().size(), 9u);
  const size_t first = r.err.find("log.file: ");
  ASSERT_NE(first, std::string::npos) << r;
  EXPECT_EQ(r.err.find("log.file: ", first + 1), std::string::npos) << r;  // said once
}

TEST(Train, ANewRunKeepsTheLinesOfTheOneBefore) {
  const TinyRun tiny;
  expect_done(tiny.train());
  const std::vector<double> first = tiny.losses();
  EXPECT_EQ(first.size(), 10u);
  expect_done(tiny.train({"--resume", "none", "training.seed=5"}), {"metrics.jsonl.1"});
  EXPECT_EQ(tiny.losses().size(), 10u);
  EXPECT_NE(tiny.losses(), first);
  EXPECT_EQ(tiny.losses("metrics.jsonl.1"), first);
}

TEST(Train, AdamsEpsilonIsANumberInFp32) {
  expect_refused(TinyRun().train({"optimizer.eps=1e-50"}), {"optimizer.eps", "1e-50", "at least"});
}

TEST(Bench, ReportsOneLineOfJson) {
  const Ran r =
      octet_says({"bench", CONFIGS "/tiny_llama.json", "training.global_batch_size=2", "training.micro_batch_size=1",
                  "training.seq_len=32", "memory.plan_cache=", "--steps", "3", "--warmup", "1", "--profile"});
  expect_done(r);
  const json report = json::parse(r.out);
  EXPECT_GT(report["tokens_per_second_per_gpu"]["median"].get<double>(), 0);
  EXPECT_LE(report["step_ms"]["min"].get<double>(), report["step_ms"]["median"].get<double>());
  EXPECT_GT(report["tflops"]["full"].get<double>(), report["tflops"]["causal"].get<double>());
  EXPECT_GT(report["memory"]["planned_bytes"].get<int64_t>(), 0);
  EXPECT_TRUE(report.contains("profile"));
}

TEST(Train, ARunThatIsDoneSaysSo) {
  const TinyRun tiny;
  expect_done(tiny.train());
  expect_done(tiny.train(), {"resumed from", "all 10 steps are done: raise training.steps"});
}

TEST(Tokenize, JsonlTextAndBadInput) {
  const TinyRun tiny;
  tiny.folder().write("a.jsonl", "{\"text\": \"one two\"}\n\n{\"text\": \"three\"}\n");
  const std::string model = tiny.path("tokenizer.model"), out = tiny.path("a.tokens");
  expect_done(
      octet_says({"tokenize", "--tokenizer", model, "--input", tiny.path("a.jsonl"), small_text(), "--out", out}),
      {"tokens of", "vocabulary 400"});
  tiny.folder().write("b.jsonl", "{\"text\": \"one\"}\n{\"txt\": \"two\"}\n");
  expect_refused(octet_says({"tokenize", "--tokenizer", model, "--input", tiny.path("b.jsonl"), "--out", out}),
                 {"b.jsonl", "2", "text"});
  expect_refused(octet_says({"tokenize", "--tokenizer", model, "--input", tiny.path("none.txt"), "--out", out}),
                 {"none.txt"});
  expect_refused(octet_says({"tokenize", "--tokenizer", small_text(), "--input", small_text(), "--out", out}),
                 {"saltmarsh.txt"});
  expect_refused(octet_says({"tokenize", "--tokenizer", model, "--input", tiny.path("train.tokens"), "--out", out}),
                 {"train.tokens", "is a token file, not text"});
  EXPECT_GT(std::filesystem::file_size(out), 128u);  // what stood there is whole
}

}  // namespace octet
