#pragma once
// A run on several ranks under mpirun, and what can be seen of it and done to it from outside.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <thread>

#include "cli/tiny_run.h"

namespace octet {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr double kEnd = 30, kReady = 120;  // seconds: that a failure may take; in which a run gets under way

inline double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }
inline void sleep_ms(int n) { std::this_thread::sleep_for(std::chrono::milliseconds(n)); }
inline bool within(double seconds, const std::function<bool()>& happens) {
  for (const Clock::time_point start = Clock::now(); seconds_since(start) < seconds; sleep_ms(2))
    if (happens()) return true;
  return false;
}
inline bool under_way(pid_t pid) { return ::kill(pid, 0) == 0; }

class Job {
 public:
  Job(const TinyRun& tiny, int ranks, std::vector<std::string> more)
      : Job(tiny, ranks, {"mpirun", "-np", std::to_string(ranks), "--oversubscribe"}, std::move(more)) {}
  Job(const TinyRun& tiny, int ranks, std::vector<std::string> launcher, std::vector<std::string> more)
      : tiny_(tiny), ranks_(ranks), process_(words(std::move(launcher), std::move(more)), folder_, "mpirun") {}
  ~Job() {
    if (process_.runs()) process_.signal(SIGKILL);
    for (int r = 0; r < int(pids_.size()); ++r) send(r, SIGKILL);
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
    EXPECT_GT(pid(rank), 0) << "rank " << rank << " was not found";
    send(rank, number);
    signalled_ = Clock::now();
  }
  void signal_launcher(int number) {
    process_.signal(number);
    signalled_ = Clock::now();
  }
  // Stops the rank where `there` holds, and goes on holding while the rank does not move: then it is in that phase.
  bool stop_where(int rank, const std::function<bool()>& there) {
    for (const Clock::time_point start = Clock::now(); seconds_since(start) < kReady && runs();) {
      if (!there()) continue;
      send(rank, SIGSTOP);
      sleep_ms(400);
      if (there()) return true;
      send(rank, SIGCONT);
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
  void send(int rank, int number) const {  // process 0 would be all of this test's own
    if (pid(rank) > 0) ::kill(pid(rank), number);
  }
  std::vector<std::string> words(std::vector<std::string> all, std::vector<std::string> more) const {
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

}  // namespace octet
