#pragma once
// DelayedScaling: scale, amax and amax history of every quantised tensor of the model, in one flat structure: one
// update kernel and one all-reduce for all. Activations and gradients use it with a history; weights use it with a
// history of one
// ("current" scaling: measured from the masters, updated, and only then cast).    FP8: arXiv:2209.05433
#include <algorithm>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "ops/ops.h"
#include "precision/health.h"

namespace octet::BACKEND {

struct ScalingOptions {
  int64_t history = 1, interval = 1;
  int margin = 0;            // scales leave 2^margin of headroom
  bool most_recent = false;  // the last amax instead of the largest of the history
  bool te_compat = false, power_of_2 = false;
  bool current = false;   // every cast measures first (recipe "current")
  bool cold_one = false;  // a slot without history casts with scale 1 instead of measuring first
  bool health = false;    // room for counts of codes
};

class DelayedScaling {
 public:
  explicit DelayedScaling(const ScalingOptions& options) : options_(options) {}
  int add(std::string name, DType format);  // the only mention of a scale; returns the slot's number
  // Slots [first, first + count) are of tensors that are alike, as those of a layer's experts are. One that is first
  // used after others, when only the device knows that it has no history, casts with the smallest of their scales.
  void alike(int first, int count) { alike_.insert(alike_.end(), {first, count}); }
  void materialise(Stream&, Arena&);  // after the model is built
  // Once a micro-batch (or step), after its backward; every rank of `group` calls it. state: the step's, or none. Waits
  // for the device while there are slots without history.
  void update(Stream&, Comm* group, Tensor state);
  void refit(Stream&, Comm* group, Tensor state);  // the same, but it counts as no update

  Slot measured(int slot) const;  // for casts that train
  Slot frozen(int slot) const;    // recomputation and evaluation leave no trace
  // Casts measure their own scale first: always under "current", else while the slot has no history.
  bool measures_first(const Slot& s) const { return options_.current || (cold_[index(s)] && !options_.cold_one); }
  // Scales of slots without history from the maxima measured so far, which all ranks of the group share. No history
  // moves.
  void fit_cold(Stream&, Comm& group);
  float largest_of(int slot) const;  // the format's largest value times 2^-margin

  int size() const { return int(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  const ScalingOptions& options() const { return options_; }
  const ScaleState& state() const { return state_; }
  int64_t updates() const { return updates_; }

  // Host copies, for checkpoints: history oldest first, without TE's row 0 (which is always zero here between steps).
  struct Snapshot {
    int64_t updates = 0, history = 0;
    std::vector<std::string> names;
    std::vector<float> scale, rows;   // (S); (history, S)
    std::vector<uint32_t> nonfinite;  // (S)
    std::vector<float> largest;       // (S): what scales stretch to; may be missing
    std::vector<char> cold;           // (S): no history yet; may be missing
  };
  Snapshot save(Stream&) const;
  // By name; another history length keeps the newest rows, another format or margin its proportion; slots that are
  // missing start cold. Returns how many were found.
  int load(Stream&, const Snapshot&);

  // Health, on request: what casts wrote between start and stop is counted. Then the figures, before update() moves on.
  void start_counting(Stream&);
  void stop_counting() { counting_ = false; }
  std::vector<CastHealth> examine(Stream&) const;  // waits for the device
  // (2,4) u32: all codes, those at the largest value, zeros; row 1 with the largest scale there is. None if not
  // counting.
  Tensor counts(int slot) const { return counting_ ? counts_.part(8 * slot, {2, 4}) : Tensor{}; }
  Tensor counts(const Slot& s) const { return s.amax ? counts(int(index(s))) : Tensor{}; }
  float* largest_scale() const { return largest_scale_.ptr<float>(); }

 private:
  size_t index(const Slot& s) const { return size_t(s.scale - state_.scale.ptr<float>()) / 4; }
  ScalingOptions options_;
  std::vector<std::string> names_;
  std::vector<DType> formats_;
  std::vector<int32_t> alike_;  // first and count of each group
  Tensor groups_{};             // the same on the device
  ScaleState state_{};
  void warm_up(Stream&);    // what has been measured is cold no longer
  std::vector<char> cold_;  // no history yet
  int64_t updates_ = 0;
  Tensor counts_{}, largest_scale_{};  // (S,2,4) u32; (4) f32
  bool counting_ = false;
};

}  // namespace octet::BACKEND
