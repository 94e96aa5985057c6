// A training run: resume, step, evaluate, save, log. The steps themselves are train/trainer.cpp.
#include <array>
#include <atomic>
#include <csignal>
#include <optional>
#include <set>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/rng.h"
#include "config/globs.h"
#include "config/peaks.h"
#include "data/checkpoints.h"
#include "data/run_folder.h"
#include "data/tokenizer.h"
#include "host/attempts.h"
#include "host/last_words.h"
#include "train/agreement.h"
#include "train/entries.h"
#include "train/metrics.h"
#include "train/same_run.h"
#include "train/saves.h"
#include "train/watchdog.h"

namespace octet::BACKEND {
namespace {

std::atomic<int> caught_signal{0};  // the one thing a signal handler may touch
void on_signal(int s) { caught_signal = s; }

class Signals {  // SIGTERM, SIGINT and SIGHUP end the run at the next step, saved
 public:
  Signals() {
    caught_signal = 0;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART | SA_RESETHAND;  // no save fails of it; a second one ends the program at once
    sigaction(SIGTERM, &action, &term_);
    sigaction(SIGINT, &action, &int_);
    sigaction(SIGHUP, nullptr, &hup_);
    if (hup_.sa_handler == SIG_IGN) return;  // set by nohup: the run outlives its terminal
    action.sa_flags = SA_RESTART;  // more of them change nothing: a shell and the kernel both tell of a closed terminal
    sigaction(SIGHUP, &action, nullptr);
  }
  ~Signals() {
    sigaction(SIGTERM, &term_, nullptr);
    sigaction(SIGINT, &int_, nullptr);
    if (!caught_signal) sigaction(SIGHUP, &hup_, nullptr);  // else the last lines of the log still come
  }

 private:
  struct sigaction term_ {
  }, int_{}, hup_{};
};

// What all ranks know of one another between two steps.
struct Boundary {
  bool ends;  // a signal on any rank is every rank's: all save the same step
  bool rest;  // every rank's threads have done their part of the save under way
};
Boundary meet(Host& host, bool rests) {
  const std::array<bool, 2> mine{caught_signal != 0, !rests};
  std::vector<std::array<bool, 2>> all(size_t(host.size()));
  host.all_gather(all.data(), mine.data(), sizeof mine);
  const auto any = [&](size_t i) { return std::any_of(all.begin(), all.end(), [i](const auto& r) { return r[i]; }); };
  return {.ends = any(0), .rest = !any(1)};
}

struct Data {
  Loader train;
  std::optional<Loader> validation;
};
LoaderConfig loader_config(const RunConfig& c, const std::vector<std::string>& files, Split split) {
  return {.files = files,
          .seq_len = c.training.seq_len,
          .vocab_size = c.model.vocab_size,
          .seed = uint64_t(*c.training.seed),
          .ignore_document_starts = c.data.document_loss_mask,
          .documents = bounds_of(c),
          .split = split,
          .held_out = c.data.validation_fraction};
}
Data open_data(const RunConfig& c) {
  const bool held_out = c.data.validation->empty() && c.data.validation_fraction > 0;
  LoaderConfig train = loader_config(c, c.data.train, held_out ? Split::train : Split::all);
  train.weights = c.data.weights;
  train.shuffle = c.data.shuffle;
  Data data{Loader(std::move(train)), std::nullopt};
  if (c.training.eval_sequences == 0 || !(held_out || !c.data.validation->empty())) return data;
  LoaderConfig v =
      loader_config(c, held_out ? *c.data.train : *c.data.validation, held_out ? Split::held_out : Split::all);
  v.shuffle = false;
  data.validation.emplace(std::move(v));
  return data;
}

// Finds now what would make a save fail hours later.
void check_tokenizer(const RunConfig& c, uint64_t of_tokens) {
  if (c.data.tokenizer->empty()) return;
  const std::filesystem::path found = tokenizer_file(*c.data.tokenizer);
  if (found.empty())
    bad_input(c.where, ": data.tokenizer: neither tokenizer.model nor tokenizer.json is in the folder '",
              *c.data.tokenizer, "': name a file, or data.tokenizer= to save none");
  const std::string file = found.string();
  std::error_code none;
  if (!std::filesystem::is_regular_file(file, none))
    log_warning("data.tokenizer: there is no file ", file, "; checkpoints are saved without it");
  else if (const uint64_t own = hash(read_file(file)); of_tokens && own != of_tokens)
    bad_input(c.where, ": data.tokenizer: '", file, "' is not the tokenizer of ", c.data.train->front(),
              ": name the one that made the token files, or data.tokenizer= to save none");
}

void warn_of_others(const RunConfig& c, const std::string& dir) {
  const std::vector<std::filesystem::path> there = complete_checkpoints(dir);
  const std::string how = c.checkpoint.resume;
  if (how == "auto" || there.empty()) return;
  const int64_t last = checkpoint_step(there.back());
  const std::filesystem::path from = how;
  const auto folder = newest_checkpoint(from).value_or(from.has_filename() ? from : from.parent_path());
  std::error_code none;
  if (how == "none" || (std::filesystem::exists(folder, none) && checkpoint_step(folder) < last))
    log_warning(dir, " holds checkpoints of another run up to step ", last,
                ": a later --resume auto continues that one; give this run a checkpoint.dir of its own");
}

std::unique_ptr<RunFolder> hold_folder(const RunConfig& c, const Data& data, Host& host) {
  const std::string dir = c.checkpoint.dir;
  if (dir.empty() || host.rank() != 0) return nullptr;
  check_tokenizer(c, data.train.tokenizer_fingerprint());
  auto folder = std::make_unique<RunFolder>(dir);
  warn_of_others(c, dir);
  return folder;
}

void require_shared_folder(const RunConfig& c, const RunFolder* held, Host& host) {
  if (c.checkpoint.dir->empty() || host.shares_memory()) return;
  const std::string mark = of_rank_0(host, held ? held->mark() : "");
  Attempts looks(host);
  if (host.rank() != 0 && !mark.empty()) looks([&] { require_marked(*c.checkpoint.dir, mark); });
  looks.agree();
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
        data_print_(data_.train.fingerprint()),
        folder_(hold_folder(config_, data_, host)),
        watch_(config_.fp8),
        from_(resume_from()),
        samples_(samples_of(data_.train)),
        saves_(config_, host, watchdog_, from_ ? from_->string() : "") {
    require_same_run(host_, config_, {data_print_, data_.validation ? data_.validation->fingerprint() : 0});
    require_shared_folder(config_, folder_.get(), host_);
    warn(warnings_of(config_));
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
    if (begin >= last && host_.rank() == 0)
      log_info("all ", last, " steps are done: raise training.steps or training.tokens to continue");
    while (trainer_->steps_done() < last) {
      watchdog_.enter(Phase::step, trainer_->steps_done() + 1);
      trainer_->step(samples_);
      const int64_t step = trainer_->steps_done();
      log_through(step - 1);  // a step behind: nothing waits for the device
      if (config_.parallel.check_every && step % config_.parallel.check_every == 0) check_agreement(trainer_->session);
      const auto [ends, rest] = meet(host_, saves_.rest());
      if (rest) saves_.advance(*trainer_);
      const bool stops = config_.training.stop_after && step - begin >= config_.training.stop_after;
      const bool evaluates = config_.training.eval_every && step % config_.training.eval_every == 0;
      const bool saves = config_.checkpoint.every && step % config_.checkpoint.every == 0;
      if (step == last || ends || stops || evaluates || saves) log_through(step);
      if (evaluates || step == last) evaluate();
      if (ends || stops || step == last) save(Saves::Kind::last);
      else if (saves) save(Saves::Kind::periodic);
      if (ends || stops) {
        result_.end = ends ? TrainResult::End::signalled : TrainResult::End::stopped;
        break;
      }
      if (const std::vector<std::string> layers = watch_.take_fallbacks(); !layers.empty() && step < last)
        fall_back(layers);
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
    const std::string newest = host_.rank() == 0 ? newest_checkpoint(dir).value_or("").string() : "";
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
  // At a step boundary, through a checkpoint: from here on the run does what a resumed one would.
  void fall_back(std::vector<std::string> layers) {
    log_through(trainer_->steps_done());
    const std::vector<std::string> more = watch_.take_fallbacks();  // of the last step
    layers.insert(layers.end(), more.begin(), more.end());
    for (const std::string& layer : std::set<std::string>(layers.begin(), layers.end())) {
      metrics_->fallback(trainer_->steps_done(), layer);
      fallbacks_.push_back(layer);
    }
    saves_.forget();
    save(Saves::Kind::last);
    build();
    load_checkpoint(*trainer_, saves_.newest());
    metrics_->replanned(plan_);
  }
  void resume() {
    if (!from_) return;
    const std::optional<std::filesystem::path>& from = from_;
    const RunState r = load_checkpoint(*trainer_, *from);
    const uint64_t tokenizer = data_.train.tokenizer_fingerprint();
    if (r.tokenizer && tokenizer && r.tokenizer != tokenizer)
      bad_input(from->string(), " was trained on tokens of a different tokenizer than ", config_.data.train->front(),
                "; tokenize again with its tokenizer");
    if (r.data && r.data != data_print_ && host_.rank() == 0)
      log_warning("the training data or its order differs from that of ", from->string(), ": sample ", r.done.samples,
                  " of the new data comes next");
    const int64_t last = total_steps(config_, r.done);
    if (r.tokens_per_step && r.tokens_per_step != tokens_per_step(config_) && host_.rank() == 0)
      log_warning(from->string(), " was trained with ", r.tokens_per_step, " tokens a step, this run takes ",
                  tokens_per_step(config_), ": ",
                  config_.training.steps > 0
                      ? std::string("training.steps and the schedule count steps of either size equally")
                      : concat("step ", last, " reaches training.tokens, and the schedule goes by tokens"));
    if (r.done.step > last)
      bad_input(from->string(), " is at step ", r.done.step, ", beyond training.steps ", last,
                "; raise it, or start anew with --resume none");
    if (host_.rank() == 0) log_info("resumed from ", from->string(), " at step ", r.done.step);
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
      if (const int64_t most = config_.training.max_skipped; most && skipped_in_a_row_ >= most)
        throw Diverged(concat("steps ", r.step - most + 1, " to ", r.step, " were all skipped (training.max_skipped)"));
      if (r.health.step) metrics_->alarms(watch_.alarms(r.health));
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
                 .data = data_print_,
                 .tokenizer = data_.train.tokenizer_fingerprint(),
                 .fallbacks = fallbacks_},
                kind);
  }

  const RunConfig& given_;
  RunConfig config_;  // with the layers that fell back excluded from FP8
  Host& host_;
  const Planner& planner_;
  Watchdog watchdog_;  // before whatever may wait for other ranks
  Data data_;
  const uint64_t data_print_;          // taken once: it reads in each of the files, which may be thousands
  std::unique_ptr<RunFolder> folder_;  // rank 0's
  HealthWatch watch_;
  std::optional<std::filesystem::path> from_;  // the checkpoint that the run continues
  std::vector<std::string> fallbacks_;
  PlanResult plan_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<Metrics> metrics_;
  Samples samples_;
  Saves saves_;
  struct Watched {
    Watchdog& watchdog;
    ~Watched() { watchdog.watch(nullptr); }
  } watched_{watchdog_};  // ends before the trainer that is watched
  TrainResult result_;
  int64_t logged_ = 0, skipped_in_a_row_ = 0;
};

}  // namespace

TrainResult train_run(const RunConfig& config, Host& host, const Planner& planner) {
  return Run(config, host, planner).run();
}

}  // namespace octet::BACKEND
