// A training run: resume, step, evaluate, save, log. The steps themselves are train/trainer.cpp.
#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "base/log.h"
#include "config/globs.h"
#include "host/last_words.h"
#include "host/signals.h"
#include "train/agreement.h"
#include "train/checkpoint.h"
#include "train/entries.h"
#include "train/metrics.h"
#include "train/run_inputs.h"
#include "train/same_run.h"
#include "train/saves.h"
#include "train/watchdog.h"

namespace octet::BACKEND {
namespace {

// What all ranks know of one another between two steps.
struct Boundary {
  bool ends, saves;  // a signal on any rank is every rank's: all save the same step
  bool rest;         // every rank's threads have done their part of the save under way
};
Boundary meet(Host& host, bool rests) {
  const std::array<bool, 3> mine{Signals::caught(), Signals::asked_to_save(), !rests};
  std::vector<std::array<bool, 3>> all(size_t(host.size()));
  host.all_gather(all.data(), mine.data(), sizeof mine);
  const auto any = [&](size_t i) { return std::any_of(all.begin(), all.end(), [i](const auto& r) { return r[i]; }); };
  return {.ends = any(0), .saves = any(1), .rest = !any(2)};
}

struct Diverged : Error {  // a check of the run itself failed; the message says at which steps
  explicit Diverged(const std::string& steps)
      : Error(concat(steps,
                     ": loss, gradients or casts were not finite, and the weights did not change. Lower schedule.lr, "
                     "lengthen the warm-up, or resume from a checkpoint before these steps"),
              1) {}
};

class Run {
 public:
  Run(const RunConfig& config, Host& host, const Planner& planner)
      : given_(config),
        config_(config),
        host_(host),
        planner_(planner),
        watchdog_(host, config.parallel.watchdog_seconds),
        data_(open_data(config_)),
        data_fingerprint_(data_.train.fingerprint()),
        validation_fingerprint_(data_.validation ? data_.validation->fingerprint() : 0),
        folder_(take_folder(config_, data_, host)),
        health_(config_.fp8),
        from_(resume_from()),
        samples_(samples_of(data_.train)),
        saves_(config_, host, watchdog_, from_ ? from_->string() : "") {
    require_same_run(host_, config_, {data_fingerprint_, validation_fingerprint_});
    require_shared_folder(config_, folder_.get(), host_);
    warn(warnings_of(config_, host_.size()));
    if (from_) fallbacks_ = fallbacks_of(host_, *from_);
    build();
    warn(warnings_of(given_.fp8, plan_.shapes));
    saves_.tell(metrics_.emplace(config_, plan_, useful_flops(), trainer_->session.device.name(), host_));
  }

  TrainResult run() try {
    resume();
    metrics_->truncate(trainer_->steps_done());
    const Signals signals;
    const int64_t begin = trainer_->steps_done(), last = total_steps(config_, trainer_->done());
    metrics_->start(begin, last);
    logged_ = begin;
    if (begin < last) saves_.prepare(trainer_->session);
    if (begin >= last && host_.rank() == 0)
      log_info("all ", last, " steps are done: raise training.steps or training.tokens to continue");
    while (trainer_->steps_done() < last) {
      watchdog_.enter(Phase::step, trainer_->steps_done() + 1);
      trainer_->step(samples_);
      const int64_t step = trainer_->steps_done();
      log_through(step - 1);  // a step behind: nothing waits for the device
      if (config_.parallel.check_every && step % config_.parallel.check_every == 0) check_agreement(trainer_->session);
      const auto [ends, asked, rest] = meet(host_, saves_.rest());
      if (rest) saves_.advance(*trainer_);
      const bool stops = config_.training.stop_after && step - begin >= config_.training.stop_after;
      const bool evaluates = config_.training.eval_every && step % config_.training.eval_every == 0;
      if (asked && config_.checkpoint.dir->empty()) warn({"SIGUSR2: nothing is saved, as checkpoint.dir is empty"});
      const bool saves = asked || (config_.checkpoint.every && step % config_.checkpoint.every == 0);
      // Waited for: a layer leaves FP8 after the step whose alarm was one too many, not a step later where nothing else
      // waits. So a run that was interrupted does what a whole one does.
      const bool measured = config_.fp8.fallback && config_.log.fp8_every && step % config_.log.fp8_every == 0;
      if (step == last || ends || stops || evaluates || saves || measured) log_through(step);
      if (evaluates || step == last) evaluate();
      const bool falls_back = take_fallbacks();
      if (ends || stops || step == last) save(Saves::Kind::last);
      else if (falls_back) rebuild();
      else if (asked || (saves && !saves_.repeats(step, skipped_in_a_row_))) save(Saves::Kind::periodic);
      if (ends || stops) {
        result_.end = ends ? TrainResult::End::signalled : TrainResult::End::stopped;
        break;
      }
    }
    result_.step = trainer_->steps_done();
    result_.checkpoint = saves_.newest();
    metrics_->finish(result_);
    if (result_.end != TrainResult::End::signalled) require_progress(begin);
    return result_;
  } catch (const Diverged& e) { end(e.what(), e.exit_code()); } catch (const std::exception& e) {
    if (watchdog_.phase() == Phase::start) throw;  // says where, once there is a where
    const auto* error = dynamic_cast<const Error*>(&e);
    end(concat(watchdog_.where(), ": ", e.what()), error ? error->exit_code() : 3);
  }

 private:
  void warn(const std::vector<std::string>& lines) const {
    for (size_t i = 0; i < lines.size() && host_.rank() == 0; ++i) log_warning(lines[i]);
  }
  // While all is in place that other ranks may be waiting in.
  [[noreturn]] void end(const std::string& message, int code) const {
    if (!host_.shares_memory()) end_job(host_, message, code);
    throw Error(message, code);
  }
  double useful_flops() const {  // of a step, without recomputation
    RunConfig once = config_;
    once.memory.recompute_blocks.set(0);
    double sum = 0;
    for (const Work& w : (config_.memory.recompute_blocks > 0 ? planner_(once) : plan_).work) sum += w.flops;
    return sum;
  }

  std::optional<std::filesystem::path> resume_from() const {
    const std::string how = config_.checkpoint.resume, dir = how == "auto" ? *config_.checkpoint.dir : how;
    if (how == "none" || (how == "auto" && dir.empty())) return {};
    // Rank 0 decides: on a network file system other ranks may see an older state.
    std::string newest;
    if (host_.rank() == 0) {
      const auto begun = begun_before(config_);
      if (begun) log_info("this run began at ", how, " before: it goes on from its own newest checkpoint");
      newest = begun ? begun->string() : newest_checkpoint(dir).value_or("").string();
    }
    const std::string from = of_rank_0(host_, newest.empty() && how != "auto" ? how : newest);
    return from.empty() ? std::nullopt : std::optional<std::filesystem::path>(from);
  }
  // Layers that fell back count as excluded.
  void build() {
    std::vector<std::string> exclude = given_.fp8.exclude;
    exclude.insert(exclude.end(), fallbacks_.begin(), fallbacks_.end());
    if (!fallbacks_.empty()) config_.fp8.exclude.set(exclude);
    watchdog_.enter(Phase::start, trainer_ ? trainer_->steps_done() : 0);
    watchdog_.watch(nullptr);
    trainer_.reset();  // its memory first
    plan_ = planner_(config_);
    trainer_ = std::make_unique<Trainer>(config_, host_, plan_, options_for(config_, host_));
    watchdog_.watch(&trainer_->session);
  }
  bool take_fallbacks() {
    const std::vector<std::string> layers = health_.take_fallbacks();
    for (const std::string& layer : layers) {
      metrics_->fallback(trainer_->steps_done(), layer);
      fallbacks_.push_back(layer);
    }
    return !layers.empty();
  }
  // At a step boundary, through a checkpoint: from here on the run does what a resumed one would.
  void rebuild() {
    log_through(trainer_->steps_done());
    save(Saves::Kind::last);
    build();
    load_checkpoint(*trainer_, saves_.newest());
    metrics_->replanned(plan_);
  }
  void resume() {
    if (!from_) return;
    const std::string from = from_->string();
    const RunState r = load_checkpoint(*trainer_, from);
    saves_.resumed(r.done.step);
    health_.resume(r.alarms);
    const uint64_t tokenizer = data_.train.tokenizer_fingerprint();
    if (r.tokenizer && tokenizer && r.tokenizer != tokenizer)
      bad_input(from, " was trained on tokens of a different tokenizer than ", config_.data.train->front(),
                "; tokenize again with its tokenizer");
    if (r.data && r.data != data_fingerprint_ && host_.rank() == 0)
      log_warning("the training data or its order differs from that of ", from, ": sample ", r.done.samples,
                  " of the new data comes next");
    if (r.validation && validation_fingerprint_ && r.validation != validation_fingerprint_ && host_.rank() == 0)
      log_warning("the validation data differs from that of ", from,
                  ": its loss cannot be compared with what was before");
    const int64_t last = total_steps(config_, r.done);
    if (r.tokens_per_step && r.tokens_per_step != tokens_per_step(config_) && host_.rank() == 0)
      log_warning(from, " was trained with ", r.tokens_per_step, " tokens a step, this run takes ",
                  tokens_per_step(config_), ": ",
                  config_.training.steps > 0
                      ? std::string("training.steps and the schedule count steps of either size equally")
                      : concat("step ", last, " reaches training.tokens, and the schedule goes by tokens"));
    if (r.done.step > last)
      bad_input(from, " is at step ", r.done.step, ", beyond training.steps ", last,
                "; raise it, or start anew with --resume none");
    if (host_.rank() == 0) log_info("resumed from ", from, " at step ", r.done.step);
  }

  // A run whose steps were all skipped has not trained; but a dynamic loss scale may still be on its way down.
  void require_progress(int64_t begin) {
    const int64_t steps = trainer_->steps_done() - begin;
    const bool falls = loss_scaling(config_.precision) == LossScaling::dynamic && trainer_->state().loss_scale > 1;
    if (steps > 0 && skipped_in_a_row_ == steps && !falls) throw Diverged(concat("all ", steps, " steps were skipped"));
  }
  void log_through(int64_t step) {
    while (logged_ < step) {
      StepReport r = trainer_->report(++logged_);
      if (r.health.step) share(r.health, host_);  // every rank sees the same, and decides the same
      if (result_.first_loss == 0) result_.first_loss = r.loss;
      result_.loss = r.loss;
      metrics_->step(r);
      skipped_in_a_row_ = r.state.skip ? skipped_in_a_row_ + 1 : 0;
      if (const int64_t most = config_.training.max_skipped; most && skipped_in_a_row_ >= most) {
        saves_.settle(*trainer_);  // of weights that these steps did not change: perhaps all there is to go back to
        throw Diverged(concat("steps ", r.step - most + 1, " to ", r.step, " were all skipped (training.max_skipped)"));
      }
      if (r.health.step) metrics_->alarms(health_.alarms(r.health));
    }
  }
  void evaluate() {
    if (!data_.validation) return;
    watchdog_.enter(Phase::evaluation, trainer_->steps_done());
    const int64_t count = std::min<int64_t>(config_.training.eval_sequences, data_.validation->samples_per_epoch());
    result_.validation_loss = trainer_->evaluate(samples_of(*data_.validation), count);
    metrics_->evaluation(trainer_->steps_done(), result_.validation_loss);
  }
  void save(Saves::Kind kind) {
    saves_.save(*trainer_,
                {.done = trainer_->done(),
                 .counters = trainer_->state(),
                 .data = data_fingerprint_,
                 .validation = validation_fingerprint_,
                 .tokenizer = data_.train.tokenizer_fingerprint(),
                 .fallbacks = fallbacks_,
                 .alarms = health_.in_a_row()},
                kind, skipped_in_a_row_);
  }

  const RunConfig& given_;
  RunConfig config_;  // with the layers that fell back excluded from FP8
  Host& host_;
  const Planner& planner_;
  Watchdog watchdog_;  // before whatever may wait for other ranks
  RunData data_;
  // Taken once: they read in each of the files, which may be thousands.
  const uint64_t data_fingerprint_, validation_fingerprint_;
  std::unique_ptr<RunFolder> folder_;  // rank 0's
  HealthWatch health_;
  std::optional<std::filesystem::path> from_;  // the checkpoint that the run continues
  std::vector<std::string> fallbacks_;
  PlanResult plan_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<Metrics> metrics_;
  Samples samples_;
  Saves saves_;
  struct Unwatch {
    Watchdog& watchdog;
    ~Unwatch() { watchdog.watch(nullptr); }
  } unwatch_{watchdog_};  // ends before the trainer that is watched
  TrainResult result_;
  int64_t logged_ = 0, skipped_in_a_row_ = 0;
};

}  // namespace

TrainResult train_run(const RunConfig& config, Host& host, const Planner& planner) {
  return Run(config, host, planner).run();
}

}  // namespace octet::BACKEND
