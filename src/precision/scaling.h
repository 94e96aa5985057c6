#pragma once
// DelayedScaling: scale, amax and amax history of every quantised tensor of the model, in one flat structure: one update
// kernel and one all-reduce for all. Activations and gradients use it with a history; weights use it with a history of one
// ("current" scaling: measured from the masters, updated, and only then cast).    FP8: arXiv:2209.05433
#include <string>
#include <vector>

#include "comm/comm.h"
#include "ops/ops.h"

namespace octet::BACKEND {

struct ScalingOptions {
  int64_t history = 1, interval = 1;
  int margin = 0;                // scales leave 2^margin of headroom
  bool most_recent = false;      // the last amax instead of the largest of the history
  bool te_compat = false, power_of_2 = false;
  bool current = false;          // every cast measures first (recipe "current")
  bool cold_one = false;         // a slot without history casts with scale 1 instead of measuring first
};

class DelayedScaling {
 public:
  explicit DelayedScaling(const ScalingOptions& options) : options_(options) {}
  int add(std::string name, DType format);          // the only mention of a scale; returns the slot's number
  void materialise(Stream&, Arena&);                // after the model is built
  // Once a micro-batch (or step), after its backward; every rank of `group` calls it. state: the step's, or none.
  void update(Stream&, Comm* group, Tensor state);

  Slot measured(int slot) const;                    // for casts that train
  Slot frozen(int slot) const;                      // recomputation and evaluation leave no trace
  // Casts measure their own scale first: always under "current", else until the first update.
  bool measures_first() const { return options_.current || (updates_ == 0 && !options_.cold_one); }
  float largest_of(int slot) const;                 // the format's largest value times 2^-margin

  int size() const { return int(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  const ScalingOptions& options() const { return options_; }
  const ScaleState& state() const { return state_; }
  int64_t updates() const { return updates_; }

  // Host copies, for checkpoints: history oldest first, without TE's row 0 (which is always zero here between steps).
  struct Snapshot {
    int64_t updates = 0, history = 0;
    std::vector<std::string> names;
    std::vector<float> scale, rows;                 // (S); (history, S)
    std::vector<uint32_t> nonfinite;                // (S)
  };
  Snapshot save(Stream&) const;
  // By name; another history length keeps the newest rows; slots that are missing start cold. Returns how many were found.
  int load(Stream&, const Snapshot&);

 private:
  ScalingOptions options_;
  std::vector<std::string> names_;
  std::vector<DType> formats_;
  ScaleState state_{};
  int64_t updates_ = 0;
};

}  // namespace octet::BACKEND
