#pragma once
// DelayedScaling: scale, amax and amax history of every quantised tensor of the model, in flat arrays with one slot per
// tensor, so that one kernel and one all-reduce update them all. Activations and gradients use it with a history,
// weights with a history of one ("current" scaling: the masters are measured, the scale is updated, then they are
// cast). A slot without history is cold.                              Micikevicius et al. 2022, arXiv:2209.05433
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
  bool current = false;         // every cast measures first (recipe "current")
  bool cold_scale_one = false;  // a cold slot casts with scale 1 instead of measuring first
  bool health = false;          // room for counts of codes
};

class DelayedScaling {
 public:
  explicit DelayedScaling(const ScalingOptions& options) : options_(options) {}
  int add(std::string name, DType format);  // the only mention of a scale; returns the slot's number
  // Slots [first, first + count) belong to similar tensors, such as those of a layer's experts. A slot of the group
  // that has never been used inherits the smallest scale of those that have (inherit_scales): an expert may receive its
  // first token at any step, when only the device knows that its slot is cold.
  void group_slots(int first, int count) { slot_groups_.insert(slot_groups_.end(), {first, count}); }
  void materialise(Stream&, Arena&);  // after the model is built
  // After the backward pass of each micro-batch (or of each step), on every rank of `group`. state: the step's, or
  // none. Waits for the device while there are cold slots.
  void update(Stream&, Comm* group, Tensor state);
  void update_uncounted(Stream&, Comm* group, Tensor state);  // the same, but not counted in updates()

  Slot measured(int slot) const;    // for casts in training: they raise amax
  Slot unmeasured(int slot) const;  // for recomputation and evaluation, which leave amax alone
  // Whether a cast first measures its tensor: always under recipe "current", else while the slot is cold.
  bool measures_first(const Slot& s) const { return options_.current || (cold_[index(s)] && !options_.cold_scale_one); }
  // Gives cold slots the scales of the maxima measured so far, over all ranks of the group. Histories stay as they are.
  void scale_cold_slots(Stream&, Comm& group);
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
    std::vector<float> largest;       // (S): the value that scales map amax to; may be missing
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
  // (2,6) u32, of count_codes(): row 1 of a cast with the largest possible scale. For a cast to so many codes; none
  // unless counting, nor where they might be more than 32 bits count: experts share a slot, and receive their tokens in
  // any number of rounds.
  Tensor counts(int slot, int64_t codes);
  Tensor counts(const Slot& s, int64_t codes) { return s.amax ? counts(int(index(s)), codes) : Tensor{}; }
  float* largest_scale() const { return largest_scale_.ptr<float>(); }

 private:
  size_t index(const Slot& s) const { return size_t(s.scale - state_.scale.ptr<float>()) / 4; }
  ScalingOptions options_;
  std::vector<std::string> names_;
  std::vector<DType> formats_;
  std::vector<int32_t> slot_groups_;  // first and count of each group
  Tensor groups_{};                   // the same on the device
  ScaleState state_{};
  void mark_warm(Stream&);  // slots with a finite amax above zero are no longer cold
  std::vector<char> cold_;
  int64_t updates_ = 0;
  Tensor counts_{}, largest_scale_{};  // (S,2,6) u32; (4) f32
  std::vector<int64_t> counted_;       // codes of each slot at most, so far
  bool counting_ = false;
};

}  // namespace octet::BACKEND
