// A rank that dies, throws or sleeps ends the job on all ranks within 30 seconds, whatever it was doing; a signal to
// one rank saves the same step on all. The times are printed.
#include <sys/resource.h>

#include "data/checkpoints.h"
#include "host/launch.h"
#include "mpi/job.h"
#include "mpi/mpirun.h"

namespace octet {
namespace {

struct Failures : Mpi {
  static void SetUpTestSuite() { tiny = new TinyRun; }
  static void TearDownTestSuite() { delete tiny; }
  static std::vector<std::string> endless(std::vector<std::string> more) {
    more.insert(more.begin(), {"training.steps=10000000", "checkpoint.every=0", "schedule.lr=1e-3"});
    return more;
  }
  static inline TinyRun* tiny = nullptr;
};

TEST_F(Failures, KilledInTraining) {
  Job job(*tiny, 3, endless({}));
  ASSERT_TRUE(job.reaches_step(4)) << job.wait();
  job.signal(1, SIGKILL);
  const Ran r = job.end("kill -9 in training");
  EXPECT_NE(r.code, 0) << r;
  EXPECT_NE(r.code, 4) << r;
}

TEST_F(Failures, KilledInACheckpointTheOneBeforeStays) {
  Job job(*tiny, 3, endless({"checkpoint.every=2"}));
  ASSERT_TRUE(job.reaches_step(4)) << job.wait();
  // Saves go on beside the steps, so that the one under way may be of an earlier step than the last; the save before it
  // was complete when it began.
  int64_t saving = 0;
  const auto in_a_later_save = [&] {
    const std::string folder = fs::path(job.saving()).filename();
    saving = folder.empty() ? 0 : std::stoll(folder.substr(folder.find('-') + 1));
    return saving > 2;
  };
  ASSERT_TRUE(job.stop_where(1, in_a_later_save));
  job.signal(1, SIGKILL);
  const Ran r = job.end("kill -9 in a checkpoint");
  EXPECT_NE(r.code, 0) << r;
  EXPECT_FALSE(job.saving().empty());  // it was not completed
  const int64_t step = job.records().back()["step"];
  expect_done(tiny->train({"checkpoint.dir=" + job.path("run"), "training.steps=" + std::to_string(step + 1),
                           "training.global_batch_size=12", "log.file="}),
              {concat("at step ", saving - 2), concat("step ", step + 1, "/")});
}

TEST_F(Failures, KilledInEvaluation) {
  Job job(*tiny, 3, endless({"training.eval_every=2", "training.eval_sequences=600", "data.validation_fraction=0.5"}));
  ASSERT_TRUE(job.reaches_step(4)) << job.wait();
  ASSERT_TRUE(job.stop_where(1, [&] {  // a step was logged, the evaluation behind it was not
    const json last = job.records().back();
    return last.contains("loss") && last["step"].get<int64_t>() % 2 == 0;
  }));
  job.signal(1, SIGKILL);
  const Ran r = job.end("kill -9 in evaluation");
  EXPECT_NE(r.code, 0) << r;
}

// The sleeper cannot speak; the others name it, and it is ended with them.
TEST_F(Failures, ARankThatSleepsIsNoticed) {
  Job job(*tiny, 3, endless({"parallel.watchdog_seconds=6"}));
  ASSERT_TRUE(job.reaches_step(4)) << job.wait();
  job.signal(1, SIGSTOP);
  const Ran r = job.end("a rank sleeps (watchdog: 6 s)");
  EXPECT_NE(r.code, 0) << r;
  EXPECT_TRUE(has(r.err, "no progress for ") && has(r.err, " s in step at step "))
      << r;  // 6 s, more where steps are slow
  EXPECT_TRUE(has(r.err, ": rank 1 has not been heard of for ")) << r;
  EXPECT_FALSE(has(r.err, "rank 0 has not") || has(r.err, "rank 2 has not")) << r;
  EXPECT_TRUE(has(r.err, ", waiting in: ") && has(r.err, " among ")) << r;  // and in what
}

// A job that was stopped as a whole (Ctrl-Z, gdb, a scheduler that lets another go first) is not late.
TEST_F(Failures, APausedJobGoesOn) {
  Job job(*tiny, 2, endless({"parallel.watchdog_seconds=2"}));
  ASSERT_TRUE(job.reaches_step(4)) << job.wait();
  for (int r : {0, 1}) job.signal(r, SIGSTOP);
  sleep_ms(4000);
  const int64_t step = job.records().back()["step"];
  for (int r : {0, 1}) job.signal(r, SIGCONT);
  EXPECT_TRUE(job.reaches_step(step + 5)) << job.wait();
  job.signal(0, SIGTERM);
  EXPECT_EQ(job.end("SIGTERM to a rank that was paused").code, 4);
}

TEST_F(Failures, ARankThatThrowsSaysWhere) {
  Job job(*tiny, 3, endless({}));
  ASSERT_TRUE(job.reaches_step(4)) << job.wait();
  fs::remove_all(job.path("run"));
  write_file(job.path("run"), "a file where the folder was");
  job.signal(1, SIGTERM);  // rank 0 cannot save
  const Ran r = job.end("a rank throws");
  EXPECT_EQ(r.code, 2) << r;  // a folder that cannot be there is bad input, whenever it comes to light
  EXPECT_TRUE(has(r.err, "octet: checkpoint at step ")) << r;  // of any rank: whoever says it ends the others
  EXPECT_TRUE(has(r.err, job.path("run"))) << r;
}

// Of one rank's disk, for a while: all ranks hear of it, go on, and save the next time.
TEST_F(Failures, ASaveThatFailsOnOneRankIsTriedAgain) {
  Job job(*tiny, 3, endless({"checkpoint.every=2"}));
  ASSERT_TRUE(job.reaches_step(4)) << job.wait();
  const auto allow = [&](rlim_t bytes) {
    const rlimit limit{bytes, RLIM_INFINITY};
    return ::prlimit(job.pid(1), RLIMIT_FSIZE, &limit, nullptr);
  };
  ASSERT_EQ(allow(4096), 0);
  const auto says = [&](const std::string& file, const std::string& text) {
    return has(read_file(job.path(file)), text);
  };
  EXPECT_TRUE(within(kReady, [&] { return !job.runs() || says("mpirun.err", "THE LAST 2 SAVES HAVE FAILED"); }));
  EXPECT_TRUE(says("mpirun.err", " is not saved: rank 1 on " + machine_name() + ": cannot write '"))
      << read_file(job.path("mpirun.err"));
  EXPECT_TRUE(says("mpirun.err", "ulimit -f"));
  ASSERT_EQ(allow(RLIM_INFINITY), 0);
  const int64_t step = job.records().back()["step"];
  ASSERT_TRUE(job.reaches_step(step + 5)) << job.wait();
  EXPECT_TRUE(checkpoint_step(complete_checkpoints(job.path("run")).back()) > step);
  job.signal(2, SIGTERM);
  const Ran r = job.end("SIGTERM after saves that failed");
  EXPECT_EQ(r.code, 4) << r;
  EXPECT_TRUE(job.saving().empty());
}

// Rank 0 holds the folder of checkpoints for all.
TEST_F(Failures, ASecondJobInTheSameFolderIsRefused) {
  Job job(*tiny, 2, endless({}));
  ASSERT_TRUE(job.reaches_step(1)) << job.wait();
  Job second(*tiny, 2, endless({"checkpoint.dir=" + job.path("run")}));
  const Ran refused = second.wait();
  EXPECT_EQ(refused.code, 2) << refused;
  EXPECT_TRUE(has(refused.err, concat("rank 0 on ", machine_name(), ": octet: checkpoint.dir ")) &&
              has(refused.err, concat("process ", job.pid(0))))
      << refused;
  job.signal(1, SIGTERM);
  EXPECT_EQ(job.end("SIGTERM after a second job was refused").code, 4);
}

// SIGTERM to mpirun itself would kill the ranks a second later, in the middle of a save.
TEST_F(Failures, TheLaunchScriptSavesOnSigtermHoweverLongThatTakes) {
  setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
  Job job(*tiny, 2, {CONFIGS "/../scripts/launch/p5-mpirun", "-", "2"}, endless({}));
  ASSERT_TRUE(job.reaches_step(4)) << job.wait();
  ::kill(job.pid(1), SIGSTOP);
  job.signal_launcher(SIGTERM);
  sleep_ms(3000);
  EXPECT_TRUE(job.runs());
  ::kill(job.pid(1), SIGCONT);
  const Ran r = job.end("SIGTERM to p5-mpirun");
  EXPECT_EQ(r.code, 4) << r;
  EXPECT_TRUE(has(r.out, concat("ended by a signal after step ", job.records().back()["step"]))) << r;
  EXPECT_EQ(complete_checkpoints(job.path("run")).size(), 1u);
}

TEST_F(Failures, Sigusr2SavesAndTheRunGoesOn) {
  Job job(*tiny, 2, endless({}));
  ASSERT_TRUE(job.reaches_step(4)) << job.wait();
  job.signal(1, SIGUSR2);
  EXPECT_TRUE(within(kReady, [&] { return !complete_checkpoints(job.path("run")).empty(); }));
  const int64_t step = job.records().back()["step"];
  EXPECT_TRUE(job.reaches_step(step + 3)) << job.wait();
  job.signal_launcher(SIGUSR1);  // which mpirun hands on
  const Ran r = job.end("SIGUSR1 to mpirun");
  EXPECT_EQ(r.code, 4) << r;
  EXPECT_EQ(complete_checkpoints(job.path("run")).size(), 2u);
}

TEST_F(Failures, ASignalToOneRankSavesTheSameStepOnAll) {
  Job job(*tiny, 3, endless({}));
  ASSERT_TRUE(job.reaches_step(4)) << job.wait();
  job.signal(2, SIGTERM);
  const Ran r = job.end("SIGTERM to one rank");
  EXPECT_EQ(r.code, 4) << r;
  const int64_t step = job.records().back()["step"];
  EXPECT_TRUE(has(r.out, concat("ended by a signal after step ", step))) << r;
  expect_done(tiny->train({"checkpoint.dir=" + job.path("run"), "training.steps=" + std::to_string(step + 1),
                           "training.global_batch_size=12", "log.file="}),
              {concat("at step ", step), concat("step ", step + 1, "/")});
}

}  // namespace
}  // namespace octet
