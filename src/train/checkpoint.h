#pragma once
// Checkpoints: a folder for each saved step.
//   model.safetensors      masters under Hugging Face's names, vocabulary padding cut off: transformers can load it
//   config.json            the model as transformers (4 or 5) describes it
//   optimizer.safetensors  NAME.m and NAME.v, moments
//   fp8.safetensors        scales and histories by name, where there are any; other ranks' own: fp8.rank-N.safetensors
//   state.json             step, samples, tokens, counters, loss scale, resolved config, fingerprints, layers that left
//                          FP8, alarms in a row of those that may
//   plans.jsonl            the product plans that timing chose, so that a resumed run computes the same bits
//   tokenizer.model        or tokenizer.json and what belongs to it, where data.tokenizer names one
//   checksums.json         of every tensor and file above (data/checksums.h)
//   COMPLETE               written last: a folder without it is a save that was cut short, and is ignored
// A save is staged in a folder of another name, made durable, and renamed: earlier checkpoints are never harmed, nor is
// one run's folder by another run (data/run_folder.h). Ranks write their own ranges of the same files and read any
// range: a run resumes on any number of ranks.
#include <deque>
#include <filesystem>
#include <map>
#include <optional>

#include "data/safetensors_writer.h"
#include "host/attempts.h"
#include "train/background_writer.h"
#include "train/trainer.h"

namespace octet::BACKEND {

struct RunState {
  Done done;
  StepState counters;
  uint64_t data = 0, validation = 0, tokenizer = 0;  // fingerprints; 0: unknown
  std::vector<std::string> fallbacks{};              // layers that fp8.fallback took out of FP8
  std::map<std::string, int64_t> alarms{};           // in a row, of layers that have not left yet
  int64_t tokens_per_step = 0;                       // of the config that is saved; 0: unknown
};

// Saves checkpoints while training goes on: begin() copies what this rank writes to host memory, `room` bytes at most
// at a time, and threads write it. Then threads of rank 0 complete the checkpoint, and remove those that
// checkpoint.keep no longer wants: small files that are made durable one after the other, and large ones that are
// freed, take seconds. All ranks call begin(), advance() and finish() together, between steps. AttemptFailed
// (host/attempts.h), on all ranks: a file could not be written on one of them. Then nothing of this step is left there,
// and what was saved before stands as it was. begin() throws a SystemError on all ranks, and writes nothing, if FP8
// scales that they share differ (train/agreement.h).
class CheckpointWriter {
 public:
  explicit CheckpointWriter(int64_t room) : background_(room) {}
  void reserve(const Session&);  // the host memory for one, in the background
  // Step `done.step`, below config.checkpoint.dir; none may be under way. repeated: a checkpoint of the same weights,
  // if there is one; of those that checkpoint.keep no longer wants it goes first.
  void begin(Trainer&, const RunState&, std::filesystem::path repeated = {});
  bool under_way() const { return save_.has_value(); }
  int64_t step() const { return save_->step; }       // that is under way
  bool rests() const { return background_.done(); }  // the threads of this rank have done their part for now
  std::optional<std::string> advance(Session&);  // when all ranks' rest, else it waits: -> the folder, once complete
  std::string finish(Session&);                  // waits until it is complete

 private:
  struct SlicedFile {  // tensors that lie in slices on all ranks
    std::filesystem::path path{};
    std::vector<StoredTensor> tensors{};
    std::optional<SafetensorsWriter> writer{};
    std::vector<uint64_t> sums{};  // of what this rank writes of each tensor
  };
  struct Staged {  // rank 0's folder, removed unless it becomes a checkpoint
    std::filesystem::path path{};
    Staged() = default;
    Staged(const Staged&) = delete;
    ~Staged();
  };
  struct Save {
    int64_t step;
    std::filesystem::path staged, final, repeated;
    Staged removed{};  // after the files are closed
    std::deque<SlicedFile> files{};
    bool completes = false;  // all is written
  };
  void complete(Session&);
  template <class ForEach>
  void open(Session&, Attempts&, const std::string& name, const std::map<std::string, std::string>& metadata,
            ForEach&& for_each);
  template <class ForEach>
  void snapshot(Session&, SlicedFile&, ForEach&& for_each);
  template <class F>
  void or_drop(Session&, F&& f);

  std::optional<Save> save_;
  BackgroundWriter background_;  // ends before what it writes to
};

// Everything but the data's position, which the caller takes from what is returned. InputError: it does not fit this
// run, or what was read is not what its checksums.json says (train/integrity.h).
RunState load_checkpoint(Trainer&, const std::filesystem::path& folder);
// What fp8.exclude must hold besides, before a Trainer is made for this checkpoint. On all ranks, as rank 0 reads it.
std::vector<std::string> fallbacks_of(Host&, const std::filesystem::path& folder);
// The newest complete checkpoint below `dir`; none if there is none.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& dir);

}  // namespace octet::BACKEND
