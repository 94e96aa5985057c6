#include "train/saves.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/memory.h"

namespace octet::BACKEND {

int64_t checkpoint_room(const RunConfig& c, const Host& host) {
  const double gib = c.checkpoint.buffer_gib;
  return gib < 0 ? available_memory() / 2 / host.local_size() : int64_t(gib * double(1 << 30));
}

Saves::Saves(const RunConfig& config, Host& host, Watchdog& watchdog, std::string from)
    : config_(config), watchdog_(watchdog), from_(std::move(from)), writer_(checkpoint_room(config, host)) {}

void Saves::prepare(const Session& s) {
  const CheckpointConfig& c = config_.checkpoint;
  if (!c.dir->empty() && c.every > 0 && c.buffer_gib != 0) writer_.reserve(s);
}

template <class F>
auto Saves::timed(F&& f) {
  using Clock = std::chrono::steady_clock;
  struct Watch {
    double& sum;
    Clock::time_point start = Clock::now();
    ~Watch() { sum += std::chrono::duration<double>(Clock::now() - start).count(); }
  } watch{waits_};
  return f();
}

void Saves::save(Trainer& trainer, const RunState& state, Kind kind, int64_t skipped_in_a_row) {
  const int64_t step = state.done.step;
  if (config_.checkpoint.dir->empty() || saved_ == step) return;
  if (writer_.under_way()) finish(trainer, Kind::periodic);
  watchdog_.enter(Phase::checkpoint, step);
  metrics_->saving();
  waits_ = 0;
  try {
    const std::string& there = newest_.empty() ? from_ : newest_;
    timed([&] { writer_.begin(trainer, state, repeats(step, skipped_in_a_row) ? there : ""); });
    saved_ = step;
  } catch (const AttemptFailed& e) { return failed(e, kind, step, trainer); }
  if (kind == Kind::last || config_.checkpoint.buffer_gib == 0) finish(trainer, kind);
}

void Saves::finish(Trainer& trainer, Kind kind) {
  const int64_t step = writer_.step();
  watchdog_.enter(Phase::checkpoint, step);
  try {
    done(timed([&] { return writer_.finish(trainer.session); }));
  } catch (const AttemptFailed& e) { failed(e, kind, step, trainer); }
}

void Saves::settle(Trainer& trainer) {
  if (writer_.under_way()) finish(trainer, Kind::late);
}

void Saves::advance(Trainer& trainer) {
  if (!writer_.under_way()) return;
  const int64_t step = writer_.step();
  try {
    if (const auto folder = timed([&] { return writer_.advance(trainer.session); })) done(*folder);
  } catch (const AttemptFailed& e) { failed(e, Kind::periodic, step, trainer); }
}

void Saves::done(const std::string& folder) {
  newest_ = folder;
  failed_ = 0;
  metrics_->saved(folder, waits_);
}

void Saves::failed(const AttemptFailed& e, Kind kind, int64_t step, const Trainer& trainer) {
  const std::string newest = newest_.empty() ? from_ : newest_;
  if (kind == Kind::last)
    throw AttemptFailed(
        concat(e.what(), newest.empty() ? "; nothing of this run is saved" : "; the newest that is saved: " + newest),
        e.exit_code());
  saved_ = -1;
  const int64_t every = config_.checkpoint.every, last = total_steps(config_, trainer.done());
  metrics_->not_saved({.step = step,
                       .next = kind == Kind::late ? 0
                               : every > 0        ? std::min((trainer.steps_done() / every + 1) * every, last)
                                                  : last,
                       .failed = ++failed_,
                       .why = e.what(),
                       .newest = newest});
}

}  // namespace octet::BACKEND
