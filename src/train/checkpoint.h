#pragma once
// Checkpoints: a folder for each saved step.
//   model.safetensors      masters under Hugging Face's names, vocabulary padding cut off: transformers can load it
//   config.json            the model as transformers (4 or 5) describes it
//   optimizer.safetensors  NAME.m and NAME.v, moments
//   fp8.safetensors        scales and histories by name, where there are any; other ranks' own: fp8.rank-N.safetensors
//   state.json             step, samples, tokens, counters, loss scale, resolved config, fingerprints, layers that left
//   FP8 plans.jsonl            which product plans timing chose: the same bits after a resume tokenizer.model where
//   data.tokenizer names it checksums.json         of every tensor and file above (data/checksums.h) COMPLETE written
//   last: a folder without it is a save that was cut short, and is ignored
// A save is staged in a folder of another name, made durable, and renamed: what was saved before is never harmed, nor
// by another run (data/run_folder.h). Ranks write their own ranges of the same files and read any: a run resumes on any
// number of ranks.
#include <filesystem>
#include <optional>

#include "train/trainer.h"

namespace octet::BACKEND {

struct RunState {
  Done done;
  StepState counters;
  uint64_t data = 0, tokenizer = 0;      // fingerprints; 0: unknown
  std::vector<std::string> fallbacks{};  // layers that fp8.fallback took out of FP8
  int64_t tokens_per_step = 0;           // of the config that is saved; 0: unknown
};

// Saves step `state.done.step` below config.checkpoint.dir, drops what checkpoint.keep no longer wants; returns its
// folder. AttemptFailed (host/attempts.h), on all ranks: a file could not be written on one of them. Then nothing of
// this step is left there, and what was saved before stands as it was.
std::string save_checkpoint(Trainer&, const RunState&);
// Everything but the data's position, which the caller takes from what is returned. InputError: it does not fit this
// run, or what was read is not what its checksums.json says (train/integrity.h).
RunState load_checkpoint(Trainer&, const std::filesystem::path& folder);
// What fp8.exclude must hold besides, before a Trainer is made for this checkpoint. On all ranks, as rank 0 reads it.
std::vector<std::string> fallbacks_of(Host&, const std::filesystem::path& folder);
// The newest complete checkpoint below `dir`; none if there is none.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& dir);

}  // namespace octet::BACKEND
