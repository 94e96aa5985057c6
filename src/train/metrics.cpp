#include "train/metrics.h"

#include <cstdio>
#include <filesystem>
#include <numeric>
#include <sstream>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "config/layers.h"
#include "config/peaks.h"
#include "data/file_names.h"
#include "data/tokenizer.h"

namespace octet::BACKEND {
namespace {
template <class... Args>
std::string format(const char* pattern, Args... args) {
  std::array<char, 256> text;
  std::snprintf(text.data(), text.size(), pattern, args...);
  return text.data();
}

// Of a layer's experts, as the share of tokens each has.
struct Load {
  std::vector<double> share;
  double entropy = 0, imbalance = 0;  // nats, of ln E; tokens of the busiest over the mean
};
Load load_of(const double* tokens, int64_t experts) {
  Load load;
  const double all = std::max(1., std::accumulate(tokens, tokens + experts, 0.));
  for (int64_t e = 0; e < experts; ++e) {
    const double share = tokens[e] / all;
    load.share.push_back(share);
    load.entropy -= share > 0 ? share * std::log(share) : 0;
    load.imbalance = std::max(load.imbalance, share * double(experts));
  }
  return load;
}

std::vector<std::string> inputs_of(const RunConfig& c) {
  std::vector<std::string> names{c.where, tokenizer_file(*c.data.tokenizer).string()};
  for (const auto* files : {&*c.data.train, &*c.data.validation}) {
    try {
      for (const std::string& name : expand_globs(*files)) names.push_back(name);
    } catch (const InputError&) {  // where nothing is evaluated, no validation file need be there
    }
  }
  return names;
}

// ", stage 1 among 8 ranks"
std::string sharding_of(const RunConfig& c, int ranks) {
  const int64_t stage = c.parallel.zero_stage, degree = shard_degree(c, ranks);
  if (ranks == 1 || stage == 0) return "";
  return concat(", stage ", stage, " among ", degree, degree == 1 ? " rank" : " ranks");
}
}  // namespace

Metrics::Metrics(const RunConfig& c, const PlanResult& plan, double flops, const std::string& device, Host& host)
    : config_(c),
      speaks_(host.rank() == 0),
      tokens_(tokens_per_step(c)),
      ranks_(host.size()),
      flops_(flops),
      peak_(c.fp8.enabled ? peak_of(device).fp8 : peak_of(device).bf16),
      memory_(plan.memory.total()) {
  if (!speaks_) return;
  if (const std::filesystem::path path = *c.log.file;
      !path.empty()) {  // an impossible file is reported before any work
    keep_inputs(path, inputs_of(c));
    if (path.has_parent_path()) make_folders(path.parent_path());
    append_to_file(path, "");
  }
  log_info(device, ", ", host.size(), host.size() == 1 ? " rank, " : " ranks, ", with_commas(plan.parameters),
           " parameters, ", human_bytes(double(memory_)), " reserved on each rank", sharding_of(c, host.size()));
  if (!c.fp8.enabled) return;
  log_info("fp8: ", c.fp8.values().dump());
  for (const std::string& line : merge_layers(plan.precision)) log_info("  ", line);
}
Metrics::~Metrics() = default;

// Hours of training are worth more than a log line: after the first one, a line that cannot be written only gives a
// warning, and no further one until writing works again.
void Metrics::append(const std::string& line) {
  if (!speaks_ || config_.log.file->empty()) return;
  try {
    append_to_file(*config_.log.file, line + "\n");
    file_ = File::works;
  } catch (const Error& e) {
    if (file_ == File::untried) throw;
    if (std::exchange(file_, File::fails) == File::works)
      log_warning("log.file: ", e.what(), "; the run continues without it");
  }
}

// The first free name of path.1, path.2, ...
static std::filesystem::path next_free(const std::filesystem::path& path) {
  for (int i = 1;; ++i)
    if (const std::filesystem::path name = concat(path.string(), ".", i); !std::filesystem::exists(name)) return name;
}

// Lines that this program did not write stay. Those of a whole earlier run are moved, not dropped.
void Metrics::truncate(int64_t step) {
  const std::filesystem::path path = *config_.log.file;
  if (!speaks_ || path.empty() || !std::filesystem::is_regular_file(path)) return;
  std::string kept, line;
  bool drops = false;
  std::istringstream in(read_file(path));
  while (std::getline(in, line)) {
    const json record = json::parse(line, nullptr, false);
    const json at = record.is_object() ? record.value("step", json()) : json();
    if (!at.is_number_integer() || at.get<int64_t>() <= step) kept += line + "\n";
    else drops = true;
  }
  if (!drops) return;
  if (step == 0) {
    const std::filesystem::path other = next_free(path);
    write_file(other, read_file(path));
    log_info("the lines of an earlier run in ", path.string(), " are in ", other.string(), " now");
  }
  write_file(path, kept);
}

void Metrics::start(int64_t begin, int64_t last) {
  begin_ = begin;
  last_ = last;
  progress_ = std::make_unique<Progress>(ProgressSetup{.what = "training",
                                                       .total = last,
                                                       .done = begin,
                                                       .unit = "steps",
                                                       .shown = speaks_ && config_.log.progress,
                                                       .line_seconds = 60});
}

double Metrics::busiest(const std::vector<double>& tokens) const {  // of all layers
  double worst = 0;
  for (size_t at = 0; at < tokens.size(); at += size_t(config_.model.num_experts))
    worst = std::max(worst, load_of(&tokens[at], config_.model.num_experts).imbalance);
  return worst;
}

void Metrics::add_experts(json& record, const StepReport& r) const {
  json loads = json::array(), entropies = json::array(), imbalances = json::array();
  for (size_t at = 0; at < r.expert_load.size(); at += size_t(config_.model.num_experts)) {
    const Load load = load_of(&r.expert_load[at], config_.model.num_experts);
    loads.push_back(load.share);
    entropies.push_back(load.entropy);
    imbalances.push_back(load.imbalance);
  }
  record.update({{"ce", r.loss},
                 {"aux", r.state.aux},
                 {"z", r.state.z},
                 {"expert_load", loads},
                 {"expert_entropy", entropies},
                 {"expert_imbalance", imbalances}});
}

void Metrics::step(const StepReport& r) {
  const double rate = double(tokens_) / r.seconds / double(ranks_);
  seconds_ += r.seconds;
  trained_ += double(tokens_);
  const bool scales_loss = loss_scaling(config_.precision) != LossScaling::none;  // logged: the next step's
  const double mfu = peak_ > 0 ? flops_ / r.seconds / peak_ : 0;
  if (speaks_ && (r.step % config_.log.every == 0 || r.step == last_ || r.step == begin_ + 1 || r.state.skip)) {
    std::string line =
        format("step %lld/%lld  loss %.4f  lr %.3e  norm %.3f  %s tokens/s/GPU", static_cast<long long>(r.step),
               static_cast<long long>(last_), r.loss, r.lr, double(r.state.norm), human_count(rate).c_str());
    if (config_.model.num_experts)
      line += format("  balance %.4f  busiest expert %.2fx", r.state.aux, busiest(r.expert_load));
    if (scales_loss) line += format("  loss scale %.8g", double(r.state.loss_scale));
    if (peak_ > 0) line += format("  MFU %.1f%%", 100 * mfu);
    line += format("  %.0f ms  %s", 1e3 * r.seconds, human_bytes(double(memory_)).c_str());
    if (r.state.skip) line += format("  SKIPPED: loss, norm or a cast is not finite (%u so far)", r.state.skipped);
    log_info(line);
    if (r.health.step) log_info("  fp8: ", r.health.summary());
  }
  json record{{"step", r.step},       {"loss", r.loss},
              {"lr", r.lr},           {"norm", r.state.norm},
              {"tokens", r.tokens},   {"tokens_per_second_per_gpu", rate},
              {"seconds", r.seconds}, {"skipped", r.state.skipped}};
  if (config_.model.num_experts) add_experts(record, r);
  if (scales_loss) record["loss_scale"] = r.state.loss_scale;
  if (peak_ > 0) record["mfu"] = mfu;
  if (r.health.step) record["fp8"] = r.health.to_json();
  append(record.dump());
  if (progress_) progress_->update(r.step, format("loss %.4f", r.loss));
}

void Metrics::alarms(const std::vector<std::string>& messages) {
  if (!speaks_) return;
  for (const std::string& message : messages) log_warning(message);
}

void Metrics::fallback(int64_t step, const std::string& layer) {
  if (speaks_)
    log_warning("FP8 of ", layer, ": its products run without FP8 from step ", step + 1, " on (fp8.fallback)");
  append(json{{"step", step}, {"fp8_fallback", layer}}.dump());
}

void Metrics::replanned(const PlanResult& plan) { memory_ = plan.memory.total(); }

void Metrics::evaluation(int64_t step, double loss) {
  if (speaks_)
    log_info(
        format("step %lld  validation loss %.4f  perplexity %.2f", static_cast<long long>(step), loss, std::exp(loss)));
  append(json{{"step", step}, {"validation_loss", loss}}.dump());
}

void Metrics::saving() { saving_at_ = seconds_; }

void Metrics::saved(const std::string& folder, double waited) {
  saved_at_ = saving_at_;
  if (speaks_) log_info("saved ", folder, format("  (training waited %.2f s)", waited));
}

void Metrics::not_saved(const NotSaved& s) {
  if (!speaks_) return;
  log_error("step ", s.step, " is not saved: ", s.why,
            s.next ? concat("; the run goes on, and saves next at step ", s.next) : std::string("; the run ends"), ". ",
            s.newest.empty() ? std::string("Nothing is saved yet") : concat("The newest checkpoint is ", s.newest));
  if (s.failed > 1 && s.next)
    log_error("THE LAST ", s.failed, " SAVES HAVE FAILED: if the run ended now, ", human_duration(seconds_ - saved_at_),
              " of training would be lost on all ranks. Act now");
}

void Metrics::finish(const TrainResult& r) {
  if (progress_) progress_->finish();
  progress_.reset();
  if (!speaks_ || seconds_ == 0) return;
  log_info(format("%lld steps, %s tokens in %s, %s tokens/s/GPU", static_cast<long long>(r.step - begin_),
                  human_count(trained_).c_str(), human_duration(seconds_).c_str(),
                  human_count(trained_ / seconds_ / double(ranks_)).c_str()));
}

}  // namespace octet::BACKEND
