#pragma once
// The saves of a run: which of them training waits for, and what one that fails means for it.
#include <string>

#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/watchdog.h"

namespace octet::BACKEND {

int64_t checkpoint_room(const RunConfig&, const Host&);  // bytes of host memory for the saves of a rank

class Saves {
 public:
  // last: before the run ends, or is rebuilt from it. late: it was under way when the run failed.
  enum class Kind : uint8_t { periodic, last, late };
  // from: the checkpoint that the run continues, or "".
  Saves(const RunConfig&, Host&, Watchdog&, std::string from);
  void tell(Metrics& metrics) { metrics_ = &metrics; }
  void prepare(const Session&);                  // before the first step
  bool rest() const { return writer_.rests(); }  // the threads of this rank have nothing to do
  void advance(Trainer&);                        // when all ranks' rest: waits for nothing
  // A run of many nodes is worth more than one save: a periodic one that fails is told of, and the next one tries
  // again. Nothing is done where the step is saved already, or nothing is to be. A save that repeats the weights of one
  // that there is takes its place in checkpoint.keep: no other weights are dropped for it.
  void save(Trainer&, const RunState&, Kind, int64_t skipped_in_a_row);
  // Before all ranks end the run: waits for the save under way. Where a rank fails alone it is dropped: the others
  // cannot complete it.
  void settle(Trainer&);
  void resumed(int64_t step) { saved_ = step; }  // what is at that step is saved
  // Whether a save would hold the weights of one that there is: all steps since were skipped.
  bool repeats(int64_t step, int64_t skipped_in_a_row) const {
    return saved_ >= 0 && step - saved_ <= skipped_in_a_row;
  }
  const std::string& newest() const { return newest_; }  // of this run; ""

 private:
  void finish(Trainer&, Kind);
  void done(const std::string& folder);
  void failed(const AttemptFailed&, Kind, int64_t step, const Trainer&);
  template <class F>
  auto timed(F&& f);

  const RunConfig& config_;
  Watchdog& watchdog_;
  const std::string from_;
  std::string newest_;
  Metrics* metrics_ = nullptr;
  CheckpointWriter writer_;
  double waits_ = 0;                 // seconds that training has waited for the save under way
  int64_t saved_ = -1, failed_ = 0;  // saved_: a step; failed_: saves in a row
};

}  // namespace octet::BACKEND
