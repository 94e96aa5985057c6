#pragma once
// Checkpoints as folders: which there are below a run's folder, and what their state.json says. What is in one stands
// in train/checkpoint.h.
#include <filesystem>
#include <vector>

#include "base/json.h"

namespace octet {

inline constexpr int kCheckpointFormat = 1;  // of state.json

int64_t checkpoint_step(const std::filesystem::path& folder);  // of "step-00001000"; -1 if it is none
// Complete ones, oldest first.
std::vector<std::filesystem::path> complete_checkpoints(const std::filesystem::path& dir);
void require_complete(const std::filesystem::path& folder);  // InputError: a checkpoint that was cut short
// What to do about a damaged one: names the next older one beside it, where there is one.
std::string instead_of(const std::filesystem::path& folder);
// state.json of a complete checkpoint. InputError: no such folder, cut short, of another format.
json read_checkpoint_state(const std::filesystem::path& folder);

}  // namespace octet
