#pragma once
// Health of FP8: how many values one cast of each quantised tensor lost, and how old its scale is; worst cases, alarms,
// and the layers that should leave FP8.
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "host/host.h"

namespace octet::BACKEND {

struct CastHealth {  // of one tensor: in one micro-batch, or of a weight; plain data, as ranks exchange it
  float scale = 1, amax = 0;
  uint64_t elements = 0;
  uint64_t saturated = 0;  // codes at the format's largest value, if the maximum is beyond it
  uint64_t flushed = 0;    // values that became zero in the cast
  double squares = 0;      // sum of squares of what the codes stand for
  int64_t age = 0;         // updates since the maximum that sets the scale was measured; 0: measured for this cast
  bool frozen = false;     // a maximum that is not finite keeps the scale from following

  double saturated_share() const { return elements ? double(saturated) / double(elements) : 0; }
  double flushed_share() const { return elements ? double(flushed) / double(elements) : 0; }
  // The largest value over the root mean square: it grows as outliers form, such as those of SwiGLU after a trillion
  // tokens (Fishman et al. 2024, arXiv:2409.12517). 0 of zeros.
  double amax_over_rms() const { return squares > 0 ? double(amax) / std::sqrt(squares / double(elements)) : 0; }
};

struct HealthReport {  // of one step, all ranks together
  int64_t step = 0;
  std::vector<std::string> names;
  std::vector<CastHealth> casts;
  int worst() const;        // the tensor that loses the largest share; -1 if there is none
  int most_peaked() const;  // the tensor of the largest amax_over_rms(); -1 if there is none
  json to_json() const;     // {"worst": name, "tensors": {name: {…}}}
  std::string summary() const;
};

// Combines the reports of all ranks: counts are added, maxima and frozen scales are those of any rank. Every rank calls
// it with the same tensors.
void share(HealthReport&, Host&);

// Remembers alarms from report to report. The same on all ranks.
class HealthWatch {
 public:
  explicit HealthWatch(const Fp8Config& config) : config_(config) {}
  // Messages: tensor, figure, what to do.
  std::vector<std::string> alarms(const HealthReport&);
  // Layers (as layer_of() names them) with fp8.fallback_after alarms in a row; they are forgotten once taken.
  std::vector<std::string> take_fallbacks();
  // Alarms in a row, by layer: a resumed run counts on.
  const std::map<std::string, int64_t>& in_a_row() const { return in_a_row_; }
  void resume(const std::map<std::string, int64_t>& in_a_row) { in_a_row_ = in_a_row; }

 private:
  const Fp8Config& config_;
  std::map<std::string, int64_t> in_a_row_;
};

// "a.weight", "a.weight.x" and "a.weight.dy" belong to "a"; all experts' w1 to "experts.*.w1". A
// pattern for fp8.exclude.
std::string layer_of(const std::string& tensor);

}  // namespace octet::BACKEND
