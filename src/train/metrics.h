#pragma once
// The output of a run: a line for each step, a progress bar on a terminal, and metrics as JSON lines.
#include <memory>

#include "base/json.h"
#include "base/progress.h"
#include "train/trainer.h"

namespace octet::BACKEND {

class Metrics {
 public:
  // flops: of a step on a rank.
  Metrics(const RunConfig&, const PlanResult&, double flops, const std::string& device, Host&);
  ~Metrics();
  // Drops later steps from the metrics file, as they will be repeated. Lines of an earlier run, if this one starts
  // afresh, are moved to another file.
  void truncate(int64_t step);
  void start(int64_t begin, int64_t last);
  void step(const StepReport&);  // with FP8's health, of all ranks, where it was asked for
  void alarms(const std::vector<std::string>&);
  void fallback(int64_t step, const std::string& layer);
  void replanned(const PlanResult&);  // after a fallback: as much work, in other memory
  void evaluation(int64_t step, double loss);
  void saving();  // what is saved is the state of now
  void saved(const std::string& folder, double waited);
  struct NotSaved {
    int64_t step, next, failed;  // of this save, of the next one (0: the run ends); saves that failed in a row
    std::string why, newest;     // newest: the checkpoint that a resume would take; "" if there is none
  };
  void not_saved(const NotSaved&);
  void finish(const TrainResult&);

 private:
  void append(const std::string& line);  // to the metrics file
  double busiest(const std::vector<double>& expert_load) const;
  void add_experts(json&, const StepReport&) const;
  const RunConfig& config_;
  bool speaks_;             // rank 0
  int64_t tokens_, ranks_;  // of a step, all ranks
  double flops_;            // of a step on one rank, attention counted causal
  double peak_;             // FLOP/s of the card for this precision; 0: unknown
  size_t memory_;
  double seconds_ = 0, trained_ = 0;     // in steps, evaluation and saving excluded
  double saving_at_ = 0, saved_at_ = 0;  // seconds_ of the state under way to the disk, and of the newest there
  int64_t begin_ = 0, last_ = 0;
  enum class File { untried, works, fails } file_ = File::untried;
  std::unique_ptr<Progress> progress_;
};

}  // namespace octet::BACKEND
