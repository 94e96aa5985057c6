// What a run has saved is never harmed: not by a second run, a second signal, a full disk, or checkpoints of a run
// before.
#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "cli/tiny_run.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

bool within_two_minutes(const std::function<bool()>& happens) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (std::chrono::steady_clock::now() < limit) {
    if (happens()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

const std::vector<std::string> kEndless{"training.steps=10000000", "checkpoint.every=0"};

struct Endless : TinyRun {
  Endless() : process(words(kEndless), folder()) {
    EXPECT_TRUE(within_two_minutes([&] { return !process.runs() || fs::exists(path("metrics.jsonl")); }));
  }
  Process process;
};

}  // namespace

TEST(RunFolder, ASecondRunInItIsRefused) {
  Endless first;
  ASSERT_TRUE(first.process.runs()) << first.process.wait();
  expect_refused(first.train({"log.file="}), {first.path("run"), concat("another run (process ", first.process.pid()),
                                              "checkpoint.dir of its own"});
  expect_done(first.train({"log.file=", "checkpoint.dir=" + first.path("other")}), {"step 10/10"});
  first.process.signal(SIGTERM);
  EXPECT_EQ(first.process.wait().code, 4);
  expect_done(first.train({"training.steps=10000000", "training.stop_after=1"}), {"resumed from"});
}

TEST(RunFolder, IsFreeAfterAKillAndRidOfAnInterruptedSave) {
  Endless first;
  ASSERT_TRUE(first.process.runs()) << first.process.wait();
  first.process.signal(SIGKILL);
  first.process.wait();
  fs::create_directories(first.path("run/.saving-00000003"));
  first.folder().write("run/.saving-00000003/model.safetensors", "half of it");
  fs::create_directories(first.path("run/.removing-step-00000001"));  // an old one whose removal was cut short
  first.folder().write("run/.removing-step-00000001/model.safetensors", "most of it");
  expect_done(first.train(), {"step 10/10"});
  EXPECT_EQ(names_in(first.path("run")), (std::vector<std::string>{".lock", "step-00000005", "step-00000010"}));
}

// A save of a step that is saved already puts the old folder aside on file systems that cannot exchange two names. What
// a crash leaves there is the only one of its step, or no longer needed.
TEST(RunFolder, ACheckpointThatWasPutAsideComesBackUnlessItHasASuccessor) {
  const TinyRun tiny;
  expect_done(tiny.train({"training.stop_after=5"}));
  fs::rename(tiny.path("run/step-00000005"), tiny.path("run/.replaced-step-00000005"));
  expect_done(tiny.train({"training.stop_after=1"}), {"resumed from " + tiny.path("run/step-00000005")});
  fs::copy(tiny.path("run/step-00000005"), tiny.path("run/.replaced-step-00000005"));
  expect_done(tiny.train(), {"resumed from " + tiny.path("run/step-00000006"), "step 10/10"});
  EXPECT_EQ(names_in(tiny.path("run")).front(), ".lock");
  EXPECT_FALSE(fs::exists(tiny.path("run/.replaced-step-00000005")));
}

TEST(RunFolder, ManySignalsEndARunAtOnceAndHarmNothing) {
  for (int round = 0; round < 3; ++round) {
    Endless run;
    ASSERT_TRUE(run.process.runs()) << run.process.wait();
    while (run.process.runs()) {
      run.process.signal(SIGINT);
      std::this_thread::sleep_for(std::chrono::microseconds(400 * (1 + 4 * round)));
    }
    const Ran r = run.process.wait();
    EXPECT_TRUE(r.code == 4 || r.code == 128 + SIGINT) << r;
    const Ran next = run.train({"training.steps=10000000", "training.stop_after=1"});
    expect_done(next, {r.code == 4 ? "resumed from" : "saved"});
    for (const std::string& name : names_in(run.path("run"))) EXPECT_FALSE(has(name, "saving")) << name;
  }
}

TEST(RunFolder, AFullDiskEndsTheRunAndKeepsWhatWasSaved) {
  const TinyRun tiny;
  expect_done(tiny.train({"training.stop_after=5"}));
  const std::string at = tiny.path("run/step-00000005/");
  const std::string weights = read_file(at + "model.safetensors"), moments = read_file(at + "optimizer.safetensors");
  // A file may grow to 64 KiB more than the weights take: the moments do not fit.
  const Ran r = run(
      {"sh", "-c",
       concat("ulimit -f ", (weights.size() + 65536) / 512, "; ", OCTET_BINARY, " train ", tiny.path("config.json"))});
  EXPECT_EQ(r.code, 3) << r;
  EXPECT_TRUE(has(r.err, "checkpoint at step 10") && has(r.err, "optimizer.safetensors")) << r;
  EXPECT_EQ(names_in(tiny.path("run")), (std::vector<std::string>{".lock", "step-00000005"}));
  EXPECT_TRUE(read_file(at + "model.safetensors") == weights && read_file(at + "optimizer.safetensors") == moments);
  expect_done(tiny.train(), {"resumed from " + tiny.path("run/step-00000005"), "step 10/10"});
}

// As after an operator has made room: the run was not lost, and the next save is whole.
TEST(RunFolder, APeriodicSaveThatFailsIsTriedAgain) {
  const TinyRun tiny;
  const std::string folder = tiny.path("run"), away = tiny.path("away");
  const auto swap = [&] { return ::renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, away.c_str(), RENAME_EXCHANGE); };
  const auto saves = [&](const std::string& than) {
    const std::vector<std::string> names = names_in(folder);
    return !names.empty() && names.back().starts_with("step-") && names.back() > than;  // it may be just made
  };
  Process process(tiny.words({"training.steps=10000000", "checkpoint.every=5", "schedule.lr=1e-3", "--ranks", "2"}),
                  tiny.folder());
  ASSERT_TRUE(within_two_minutes([&] { return !process.runs() || (fs::exists(folder) && saves("")); }));
  write_file(away, "a file where the folder was");
  ASSERT_EQ(swap(), 0);
  const auto said = [&] { return read_file(tiny.path("ran.err")); };
  EXPECT_TRUE(within_two_minutes([&] { return !process.runs() || has(said(), "THE LAST 2 SAVES HAVE FAILED"); }));
  ASSERT_TRUE(process.runs()) << process.wait();
  EXPECT_TRUE(has(said(), "error: step ") && has(said(), " is not saved: cannot ") && has(said(), folder) &&
              has(said(), "name another place") && has(said(), "The newest checkpoint is " + folder + "/step-"))
      << said();
  ASSERT_EQ(swap(), 0);
  const std::string newest = names_in(folder).back();
  EXPECT_TRUE(within_two_minutes([&] { return !process.runs() || saves(newest); }));
  process.signal(SIGTERM);
  const Ran r = process.wait();
  EXPECT_EQ(r.code, 4) << r;
  expect_done(tiny.train({"training.steps=10000000", "training.stop_after=1"}), {"resumed from"});
}

TEST(RunFolder, KeepDropsNothingThatWasJustSaved) {
  const TinyRun tiny;
  expect_done(tiny.train({"checkpoint.keep=1"}));
  const Ran anew = tiny.train({"--resume", "none", "training.steps=6", "checkpoint.every=3", "checkpoint.keep=1"});
  expect_done(anew, {"step 6/6"});
  EXPECT_TRUE(has(anew.out + anew.err, "another run up to step 10")) << anew;
  EXPECT_EQ(names_in(tiny.path("run")), (std::vector<std::string>{".lock", "step-00000006", "step-00000010"}));
}

TEST(RunFolder, GoingOnFromAnEarlierCheckpointWarnsOfTheLaterOnes) {
  const TinyRun tiny;
  expect_done(tiny.train());
  const std::string older = tiny.path("run/step-00000005"), newest = tiny.path("run/step-00000010");
  Ran r = tiny.train({"--resume", older + "/", "training.stop_after=1"});
  expect_done(r, {"resumed from " + older});
  EXPECT_TRUE(has(r.err, "another run up to step 10")) << r;
  r = tiny.train({"--resume", newest});
  expect_done(r, {"resumed from " + newest});
  EXPECT_FALSE(has(r.err, "another run")) << r;
}

// As a job that is put into the queue again: it does not start anew at the import.
TEST(RunFolder, ARunThatBeganAtACheckpointElsewhereIsContinuedByTheSameCommand) {
  const TinyRun start, tiny;
  expect_done(start.train({"training.stop_after=3"}));
  const std::vector<std::string> command{"--resume", start.path("run"), "training.stop_after=2",
                                         "data.train=" + start.path("train.tokens")};
  expect_done(tiny.train(command), {"resumed from " + start.path("run/step-00000003")});
  Ran r = tiny.train(command);
  expect_done(r, {"began at " + start.path("run"), "resumed from " + tiny.path("run/step-00000005")});
  EXPECT_FALSE(has(r.out + r.err, "another run")) << r;
  r = tiny.train({"--resume", tiny.path("run/step-00000005"), "training.stop_after=1"});  // inside: back to it
  expect_done(r, {"resumed from " + tiny.path("run/step-00000005"), "step 6/10"});
  r = tiny.train({"--resume", start.path("run/step-00000003"), "training.stop_after=1"});  // another command
  expect_done(r, {"resumed from " + start.path("run/step-00000003"), "step 4/10"});
}

TEST(RunFolder, ALogThatCannotBeWrittenIsToldBeforeTheFirstStep) {
  const TinyRun tiny;
  for (const std::string& bad : {tiny.path(""), tiny.path("train.tokens/log.jsonl")}) {
    const Ran r = tiny.train({"log.file=" + bad});
    expect_refused(r, {bad == tiny.path("") ? bad : tiny.path("train.tokens"), "name another place"});
    EXPECT_FALSE(has(r.out, "step 1/")) << r;
  }
  const Ran full = tiny.train({"log.file=/dev/full", "checkpoint.dir="});
  EXPECT_EQ(full.code, 3) << full;
  EXPECT_TRUE(has(full.err, "/dev/full") && has(full.err, "No space")) << full;
}

TEST(RunFolder, LinesOfALogThatAreNotOursStay) {
  const TinyRun tiny;
  expect_done(tiny.train({"training.stop_after=5"}));
  const std::string theirs = "{\"step\": \"later\"}\n{\"step\": 1e300}\n{\"step\": null}\n[7]\nnot JSON\n";
  tiny.folder().write("metrics.jsonl", theirs + "{\"step\": 5}\n{\"step\": 6}\n");
  expect_done(tiny.train(), {"step 10/10"});
  EXPECT_TRUE(read_file(tiny.path("metrics.jsonl")).starts_with(theirs + "{\"step\": 5}\n{\"step\":6,"))
      << read_file(tiny.path("metrics.jsonl"));
}

}  // namespace octet
