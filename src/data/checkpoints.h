#pragma once
// Checkpoints as folders: those in a run's folder, and their state.json. The contents of one: train/checkpoint.h.
#include <filesystem>
#include <vector>

#include "base/json.h"

namespace octet {

inline constexpr int kCheckpointFormat = 1;  // of state.json

int64_t checkpoint_step(const std::filesystem::path& folder);  // of "step-00001000"; -1 if it is none
// Complete ones, oldest first; none where there is no such folder. A fs::filesystem_error where that cannot be known:
// a run that took it for none would start anew.
std::vector<std::filesystem::path> complete_checkpoints(const std::filesystem::path& dir);
void require_complete(const std::filesystem::path& folder);  // InputError: no checkpoint, or one that was cut short
// Advice about a damaged one: names the next older checkpoint in the same folder, if there is one.
std::string instead_of(const std::filesystem::path& folder);
// state.json of a complete checkpoint. InputError: no such folder, no checkpoint, cut short, of another format.
json read_checkpoint_state(const std::filesystem::path& folder);

}  // namespace octet
