#pragma once
// Session: a model on one rank's device, as training, evaluation, verification and benchmarks share it.
#include <atomic>

#include "config/config.h"
#include "data/loader.h"
#include "host/engine.h"
#include "models/model.h"
#include "train/expert_groups.h"

namespace octet::BACKEND {

// Where batches come from: a loader, files of golden values, or random tokens. Samples are counted over the whole run.
struct Samples {
  std::function<Batch(int64_t first, int64_t count)> batch;
  std::function<int64_t(int64_t first, int64_t count)> valid_targets;
};
Samples samples_of(const Loader&);             // the loader outlives it
inline Bounds bounds_of(const RunConfig& c) {  // what its batches hold
  return c.data.intra_document_mask ? Bounds::of_documents : Bounds::none;
}
Samples random_samples(const RunConfig&);  // uniform tokens, for plans and benchmarks

Device::Options options_for(const RunConfig&, const Host&);

enum class Purpose : uint8_t { train, evaluate };  // evaluate: no gradients, moments or random start
class Session {
 public:
  // device: options_for(config, host), or the plan's target.
  Session(const RunConfig&, Host&, const PlanResult&, Purpose, const Device::Options& device);
  ~Session();
  Context context(Pass pass);
  Comm* amax_group() const;          // ranks that share FP8 scales; null: each has its own
  void update_scales(Tensor state);  // of activations and gradients, once a micro-batch or step; state: the step's
  // Copies a micro-batch to the device. Tensors stay as they are until the next upload.
  DeviceBatch upload(const Batch&);
  // Mean over the valid targets of samples [first, first + count), all ranks together.
  double loss(const Samples&, int64_t first, int64_t count);
  Tensor loss_total() const { return sums_.part(0, {1}); }  // f64, for training without a Trainer

  const RunConfig& config;
  Host& host;
  Device device;
  Stream stream, side;  // side: for collectives, with high priority
  Arenas arenas;

 private:
  int64_t degree_;                                   // ranks that shard among themselves
  std::unique_ptr<Host> shard_host_, replica_host_;  // of hybrid sharding

 public:
  std::unique_ptr<Comm> world, own_shard, replica;  // replica: ranks that hold the same slices; null if alone
  Comm* shard;  // ranks that shard among themselves; not world, whose scalar all-reduces must not queue behind it
  ExpertGroups experts;
  std::atomic<int64_t> pulse{0};  // grows with every sign of progress; watched from another thread
  Recipe recipe;
  DelayedScaling scaling;
  ParameterStore params;
  Decoder model;

 private:
  struct Upload;
  Tensor tokens_{}, targets_{}, order_{}, documents_{}, losses_{}, sums_{};
  std::vector<std::unique_ptr<Upload>> uploads_;  // used in turns
  size_t next_upload_ = 0;
};

}  // namespace octet::BACKEND
