#pragma once
// How much memory of the machine is free.
#include <cstdint>
#include <filesystem>

namespace octet {

// Bytes that this process could still take without swapping: what the kernel calls available, and less where a control
// group (of a container, or of a Slurm job) or ulimit -v sets a limit. 0 if it cannot be told. root: where /proc and
// /sys are.
int64_t available_memory(const std::filesystem::path& root = "/");

// Bytes of addresses that ulimit -v leaves to this process, taken or not: it counts what is reserved, not what is used.
// INT64_MAX without a limit.
int64_t address_space_left();

// Where there is such a limit, starts this program again in a way that wastes none of it, once; call it first in main.
// OpenBLAS has started threads before main, each of which tries for ever to reserve 128 MiB, and the C library reserves
// 64 to 128 MiB for the heap of each thread.
void restart_frugally(char** argv);

}  // namespace octet
