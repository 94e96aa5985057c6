// A rank that dies, throws or sleeps ends the job on all ranks within 30 seconds, whatever it was doing; a signal to
// one rank saves the same step on all. The times are printed.
#include <chrono>
#include <fstream>
#include <functional>
#include <thread>

#include "cli/tiny_run.h"
#include "mpi/mpirun.h"

namespace octet {
namespace {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr double kEnd = 30, kReady = 120;  // seconds: that a failure may take; in which a run gets under way

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }
void sleep_ms(int n) { std::this_thread::sleep_for(std::chrono::milliseconds(n)); }
bool within(double seconds, const std::function<bool()>& happens) {
  for (const Clock::time_point start = Clock::now(); seconds_since(start) < seconds; sleep_ms(2))
    if (happens()) return true;
  return false;
}
bool under_way(pid_t pid) { return ::kill(pid, 0) == 0; }

// A run on several ranks, and what can be seen of it from outside.
class Job {
 public:
  Job(const TinyRun& tiny, int ranks, std::vector<std::string> more)
      : tiny_(tiny), ranks_(ranks), process_(words(more), folder_, "mpirun") {}
  ~Job() {
    if (process_.runs()) process_.signal(SIGKILL);
    for (pid_t pid : pids_) ::kill(pid, SIGKILL);
  }
  std::string path(const std::string& name) const { return folder_ / name; }
  bool runs() { return process_.runs(); }

  std::vector<json> records() const {  // of the metrics, whole lines only
    std::vector<json> all;
    if (!fs::exists(path("metrics.jsonl"))) return all;
    std::istringstream lines(read_file(path("metrics.jsonl")));
    for (std::string line; std::getline(lines, line);)
      if (json record = json::parse(line, nullptr, false); record.is_object()) all.push_back(std::move(record));
    return all;
  }
  std::string saving() const {  // the folder of a checkpoint under way
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(path("run"), none))
      if (entry.path().filename().string().starts_with(".saving-")) return entry.path();
    return "";
  }
  bool reaches_step(int64_t step) {
    return within(kReady, [&] { return !runs() || (!records().empty() && records().back()["step"] >= step); }) &&
           runs() && find_ranks();
  }
  pid_t pid(int rank) const { return pids_.at(size_t(rank)); }
  void signal(int rank, int number) {
    ::kill(pid(rank), number);
    signalled_ = Clock::now();
  }
  // Stops the rank where `there` holds, and goes on holding while the rank does not move: then it is in that phase.
  bool stop_where(int rank, const std::function<bool()>& there) {
    for (const Clock::time_point start = Clock::now(); seconds_since(start) < kReady && runs();) {
      if (!there()) continue;
      ::kill(pid(rank), SIGSTOP);
      sleep_ms(400);
      if (there()) return true;
      ::kill(pid(rank), SIGCONT);
      sleep_ms(5);
    }
    return false;
  }
  Ran end(const char* what) {  // which must come in time, and leave nobody behind
    const bool ended = within(kEnd, [&] { return !runs(); });
    const double seconds = seconds_since(signalled_);
    EXPECT_TRUE(ended) << what << ": the job goes on";
    if (!ended) process_.signal(SIGKILL);
    std::printf("%s: the job ended after %.1f s\n", what, seconds);
    for (int r = 0; r < ranks_; ++r)
      EXPECT_TRUE(within(5, [&] { return !under_way(pid(r)); })) << what << ": rank " << r << " goes on";
    return process_.wait();
  }
  Ran wait() { return process_.wait(); }

 private:
  std::vector<std::string> words(std::vector<std::string> more) const {
    std::vector<std::string> all{"mpirun", "-np", std::to_string(ranks_), "--oversubscribe"};
    more.insert(more.begin(), {"checkpoint.dir=" + path("run"), "log.file=" + path("metrics.jsonl"),
                               "training.global_batch_size=12", "training.micro_batch_size=1"});
    for (const std::string& word : tiny_.words(more)) all.push_back(word);
    return all;
  }
  bool find_ranks() {  // processes of this program that mpirun started, in the order of their ranks
    pids_.assign(size_t(ranks_), 0);
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::error_code none;
      if (fs::read_symlink(entry.path() / "exe", none) != fs::canonical(OCTET_BINARY)) continue;
      std::ifstream words(entry.path() / "cmdline"), variables(entry.path() / "environ");
      bool ours = false;
      for (std::string word; std::getline(words, word, '\0');) ours |= has(word, path("metrics.jsonl"));
      for (std::string v; ours && std::getline(variables, v, '\0');)
        if (v.starts_with("OMPI_COMM_WORLD_RANK=")) pids_.at(size_t(std::stoi(v.substr(21)))) = std::stoi(name);
    }
    return std::all_of(pids_.begin(), pids_.end(), [](pid_t p) { return p > 0; });
  }

  const TinyRun& tiny_;
  const Scratch folder_;
  const int ranks_;
  Process process_;
  std::vector<pid_t> pids_;
  Clock::time_point signalled_ = Clock::now();
};

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
  ASSERT_TRUE(job.stop_where(1, [&] { return !job.saving().empty(); }));
  job.signal(1, SIGKILL);
  const Ran r = job.end("kill -9 in a checkpoint");
  EXPECT_NE(r.code, 0) << r;
  EXPECT_FALSE(job.saving().empty());  // it was not completed
  const int64_t step = job.records().back()["step"];
  expect_done(tiny->train({"checkpoint.dir=" + job.path("run"), "training.steps=" + std::to_string(step + 1),
                           "training.global_batch_size=12", "log.file="}),
              {concat("at step ", step - 2), concat("step ", step + 1, "/")});
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
  Job job(*tiny, 3, endless({"checkpoint.every=3", "checkpoint.dir=" + tiny->path("train.tokens/run")}));
  const Clock::time_point start = Clock::now();
  const bool ended = within(kReady, [&] { return !job.runs(); });
  EXPECT_TRUE(ended);
  const Ran r = job.wait();
  std::printf("a rank throws: the job ended after %.1f s, start and three steps included\n", seconds_since(start));
  EXPECT_EQ(r.code, 3) << r;
  EXPECT_TRUE(has(r.err, "rank 0: octet: checkpoint at step 3: ")) << r;
  EXPECT_TRUE(has(r.err, "train.tokens")) << r;
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
