#include "train/watchdog.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>

#include "host/last_words.h"

namespace octet::BACKEND {
namespace {
constexpr double kTick = 0.25;  // seconds between looks
constexpr double kStart = 40, kCheckpoint = 10, kSlow = 10;
constexpr unsigned kFarewell = 5;  // seconds in which MPI_Abort must have ended this process
}  // namespace

Watchdog::Watchdog(Host& host, double seconds) : host_(host), seconds_(seconds) {
  if (seconds_ <= 0) return;
  thread_ = std::thread([this] { run(); });  // before the first collective: a rank may have stopped already
  if (host.size() == 1 || host.shares_memory()) return;
  try {
    auto heartbeats = std::make_unique<Heartbeats>(host);
    const std::lock_guard lock(mutex_);
    heartbeats_ = std::move(heartbeats);
  } catch (...) {
    end();
    throw;
  }
}

Watchdog::~Watchdog() { end(); }

void Watchdog::end() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::enter(Phase phase, int64_t step) {
  const std::lock_guard lock(mutex_);
  hear();
  if (phase == Phase::start) steps_ = 0;
  if (phase == Phase::step) ++steps_;
  phase_ = phase;
  step_ = step;
}

void Watchdog::hear() {
  if (phase_ == Phase::step && steps_ > 2) longest_ = std::max(longest_, now_ - heard_);
  heard_ = now_;
}

void Watchdog::watch(Session* session) {
  const std::lock_guard lock(mutex_);
  session_ = session;
  if (session) pulse_ = session->pulse;
}

std::string Watchdog::where() const { return concat(name_of(phase_), " at step ", step_); }

double Watchdog::limit() const {
  if (phase_ == Phase::checkpoint) return kCheckpoint * seconds_;
  if (phase_ == Phase::start || steps_ <= 2) return kStart * seconds_;
  return std::max(seconds_, kSlow * longest_);
}

// Seconds are those that this process was running: one that was stopped (Ctrl-Z, a laptop's lid) is not late.
void Watchdog::run() {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  for (Clock::time_point last = Clock::now(); !ends_;) {
    changed_.wait_for(lock, std::chrono::duration<double>(kTick), [&] { return ends_; });
    const Clock::time_point now = Clock::now();
    now_ += std::min(4 * kTick, std::chrono::duration<double>(now - last).count());
    last = now;
    listen();
    if (heartbeats_) heartbeats_->beat(now_);
    if (now_ - heard_ <= limit() + turn_of(host_.rank())) continue;
    const std::string missing = heartbeats_ ? heartbeats_->missing(now_) : "";
    end_job(concat("no progress for ", int(now_ - heard_), " s in ", where(), under_way(), missing.empty() ? "" : ": ",
                   missing));
  }
}

std::array<Watchdog::Group, 6> Watchdog::groups() const {
  const ExpertRanks experts = session_->experts.ranks();
  return {{{"all ranks", session_->world.get()},
           {"the ranks that shard", session_->own_shard.get()},
           {"the ranks that replicate", session_->replica.get()},
           {"the ranks that hold a layer's experts together", experts.group},
           {"the ranks that shard experts", experts.process_groups.shard},
           {"the ranks that replicate experts", experts.process_groups.replica}}};
}

std::string Watchdog::under_way() const {
  std::string text;
  for (const auto& [name, comm] : session_ ? groups() : std::array<Group, 6>{})
    if (const std::string what = comm ? comm->under_way() : ""; !what.empty())
      text += concat(text.empty() ? ", waiting in: " : ", ", what, " among ", name);
  if (const char* what = host_.under_way(); what && text.empty())
    return concat(", waiting in: ", what, " on the host among all ranks");
  return text;
}

void Watchdog::listen() {
  if (!session_) return;
  if (const int64_t pulse = session_->pulse; pulse != pulse_) {
    pulse_ = pulse;
    hear();
  }
  try {
    for (const auto& [name, comm] : groups())
      if (comm) comm->poll();
  } catch (const Error& e) { end_job(concat(e.what(), " in ", where())); }
}

// Called on the watchdog's thread, whatever the training thread waits for. Ranks that are threads end together.
void Watchdog::end_job(const std::string& why) const {
  const std::string line = concat(name_of_rank(host_), host_.size() > 1 ? ": " : "", "octet: ", why, "\n");
  if (::write(STDERR_FILENO, line.data(), line.size()) < 0) std::perror("octet");
  std::signal(SIGALRM, SIG_DFL);
  ::alarm(kFarewell);
  if (!host_.shares_memory()) host_.abort(3);
  std::_Exit(3);
}

}  // namespace octet::BACKEND
