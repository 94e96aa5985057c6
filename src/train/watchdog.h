#pragma once
// Watchdog: ends the job when this rank makes no progress for too long, so that a hung job does not occupy its GPUs.
//
//   phase        longest silence (w: parallel.watchdog_seconds)   progress is
//   start        40 w                                             the next phase; the first two steps belong to it
//   step         w, or ten times the longest silence of a step    a micro-batch handed over, a step finished
//   evaluation   as for a step                                    a micro-batch handed over
//   checkpoint   10 w: a disk takes its time to flush             a piece written
#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "host/heartbeats.h"
#include "train/session.h"

namespace octet::BACKEND {

enum class Phase : uint8_t { start, step, evaluation, checkpoint };
constexpr const char* name_of(Phase p) { return std::array{"start", "step", "evaluation", "checkpoint"}[size_t(p)]; }

class Watchdog {
 public:
  Watchdog(Host&, double seconds);  // 0: keeps the phase, but never ends anything
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  void enter(Phase, int64_t step);        // the rank goes on to this
  void watch(Session*);                   // its pulse, and its collectives for errors; null: none any more
  Phase phase() const { return phase_; }  // for the thread that enters them
  std::string where() const;              // "checkpoint at step 7"
  double limit() const;                   // seconds of silence that end the job now

 private:
  void run();
  void end();     // of the thread
  void listen();  // to the session
  void hear();    // that there is progress
  struct Group {
    const char* name = "";
    Comm* comm = nullptr;
  };
  std::array<Group, 6> groups() const;  // of the session
  std::string under_way() const;        // ", waiting in: all-gather of 1.5 MiB among all ranks"
  [[noreturn]] void end_job(const std::string& why) const;

  Host& host_;
  const double seconds_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  Phase phase_ = Phase::start;
  int64_t step_ = 0, steps_ = 0;              // steps_: entered since the last start
  double now_ = 0, heard_ = 0, longest_ = 0;  // seconds that this process was running
  Session* session_ = nullptr;
  int64_t pulse_ = 0;
  std::unique_ptr<Heartbeats> heartbeats_;  // of ranks that are processes
  std::thread thread_;
};

}  // namespace octet::BACKEND
