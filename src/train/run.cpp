// A training run: resume, step, evaluate, save, log. The steps themselves are train/trainer.cpp.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>

#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "config/peaks.h"
#include "train/checkpoint.h"
#include "train/entries.h"
#include "train/metrics.h"

namespace octet::BACKEND {
namespace {

std::atomic<int> caught_signal{0};  // the one thing a signal handler may touch
void on_signal(int s) { caught_signal = s; }

class Signals {                     // SIGTERM and SIGINT end the run at the next step, saved
 public:
  Signals() {
    caught_signal = 0;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESETHAND; // a second one ends the program at once
    sigaction(SIGTERM, &action, &term_);
    sigaction(SIGINT, &action, &int_);
  }
  ~Signals() {
    sigaction(SIGTERM, &term_, nullptr);
    sigaction(SIGINT, &int_, nullptr);
  }

 private:
  struct sigaction term_ {}, int_ {};
};

// A signal on any rank is every rank's: all save the same step.
bool agreed_to_end(Host& host) {
  const int mine = caught_signal;
  std::vector<int> all(size_t(host.size()));
  host.all_gather(all.data(), &mine, sizeof mine);
  return std::any_of(all.begin(), all.end(), [](int s) { return s != 0; });
}

struct Data {
  Loader train;
  std::optional<Loader> validation;
};
LoaderConfig loader_config(const RunConfig& c, const std::vector<std::string>& files, Split split) {
  return {.files = files, .seq_len = c.training.seq_len, .vocab_size = c.model.vocab_size, .seed = uint64_t(*c.training.seed),
          .ignore_document_starts = c.data.document_mask, .split = split, .held_out = c.data.validation_fraction};
}
Data open_data(const RunConfig& c) {
  const bool held_out = c.data.validation->empty() && c.data.validation_fraction > 0;
  LoaderConfig train = loader_config(c, c.data.train, held_out ? Split::train : Split::all);
  train.weights = c.data.weights;
  train.shuffle = c.data.shuffle;
  Data data{Loader(std::move(train)), std::nullopt};
  if (c.training.eval_sequences == 0 || !(held_out || !c.data.validation->empty())) return data;
  LoaderConfig v = loader_config(c, held_out ? *c.data.train : *c.data.validation, held_out ? Split::held_out : Split::all);
  v.shuffle = false;
  data.validation.emplace(std::move(v));
  return data;
}

class Run {
 public:
  Run(const RunConfig& config, Host& host, const Planner& planner)
      : config_(config), host_(host), data_(open_data(config)), plan_(planner(config)),
        trainer_(config, host, plan_, options_for(config, host)), metrics_(config, plan_, trainer_.session.device.name(), host),
        samples_(samples_of(data_.train)) {}

  TrainResult run() {
    resume();
    const Signals signals;
    const int64_t last = total_steps(config_), begin = trainer_.steps_done();
    metrics_.start(begin, last);
    logged_ = begin;
    while (trainer_.steps_done() < last) {
      trainer_.step(samples_);
      const int64_t step = trainer_.steps_done();
      log_through(step - 1);                                  // a step behind: nothing waits for the device
      const bool ends = agreed_to_end(host_), stops = config_.training.stop_after && step - begin >= config_.training.stop_after;
      const bool evaluates = config_.training.eval_every && step % config_.training.eval_every == 0;
      const bool saves = config_.checkpoint.every && step % config_.checkpoint.every == 0;
      if (step == last || ends || stops || evaluates || saves) log_through(step);
      if (evaluates || step == last) evaluate();
      if (saves || ends || stops || step == last) save();
      if (ends || stops) {
        result_.end = ends ? TrainResult::End::signalled : TrainResult::End::stopped;
        break;
      }
    }
    result_.step = trainer_.steps_done();
    metrics_.finish(result_);
    return result_;
  }

 private:
  void resume() {
    const std::string how = config_.checkpoint.resume, dir = config_.checkpoint.dir;
    std::optional<std::filesystem::path> from;
    if (how == "auto") {
      if (!dir.empty()) from = newest_checkpoint(dir);
    } else if (how != "none") {
      from = how;
    }
    if (!from) return;
    const RunState r = load_checkpoint(trainer_, *from);
    const uint64_t tokenizer = data_.train.tokenizer_fingerprint();
    if (r.tokenizer && tokenizer && r.tokenizer != tokenizer)
      bad_input(from->string(), " was trained on tokens of another tokenizer than ", config_.data.train->front(), "; tokenize again with its tokenizer.model");
    if (r.data && r.data != data_.train.fingerprint())
      log_warning("the training data or its order is not that of ", from->string(), ": sample ", r.samples, " of the new data comes next");
    if (r.step > total_steps(config_)) bad_input(from->string(), " is at step ", r.step, ", beyond training.steps ", total_steps(config_), "; raise it, or start anew with --resume none");
    log_info("resumed from ", from->string(), " at step ", r.step);
    metrics_.truncate(r.step);
  }

  void log_through(int64_t step) {
    while (logged_ < step) {
      const StepReport r = trainer_.report(++logged_);
      if (result_.first_loss == 0) result_.first_loss = r.loss;
      result_.loss = r.loss;
      metrics_.step(r);
    }
  }
  void evaluate() {
    if (!data_.validation) return;
    const int64_t count = std::min<int64_t>(config_.training.eval_sequences, data_.validation->samples_per_epoch());
    result_.validation_loss = trainer_.evaluate(samples_of(*data_.validation), count);
    metrics_.evaluation(trainer_.steps_done(), result_.validation_loss);
  }
  void save() {
    if (config_.checkpoint.dir->empty() || saved_ == trainer_.steps_done()) return;
    saved_ = trainer_.steps_done();
    result_.checkpoint = save_checkpoint(trainer_, {.step = trainer_.steps_done(), .samples = trainer_.samples_done(), .counters = trainer_.state(),
                                                    .data = data_.train.fingerprint(), .tokenizer = data_.train.tokenizer_fingerprint()});
    metrics_.saved(result_.checkpoint);
  }

  const RunConfig& config_;
  Host& host_;
  Data data_;
  PlanResult plan_;
  Trainer trainer_;
  Metrics metrics_;
  Samples samples_;
  TrainResult result_;
  int64_t logged_ = 0, saved_ = -1;
};

}  // namespace

TrainResult train_run(const RunConfig& config, Host& host, const Planner& planner) { return Run(config, host, planner).run(); }

}  // namespace octet::BACKEND
