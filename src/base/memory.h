#pragma once
// How much memory of the machine is free.
#include <cstdint>
#include <filesystem>

namespace octet {

// Bytes that this process could still take without swapping: what the kernel calls available, and less where a control
// group (of a container, or of a Slurm job) sets a limit. 0 if it cannot be told. root: where /proc and /sys are.
int64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace octet
