#pragma once
// Whether replicated state is bitwise equal on all ranks that hold it: all of it for parallel.check_every, FP8's scales
// at each save. Ranks that differ are a fault of the machine.
#include "train/session.h"

namespace octet::BACKEND {

// Throws an error that names the tensor and the ranks. Copies whole weights to the host and hashes them there: for
// llama2_7b on one GPU this takes seconds.
void check_agreement(Session&);

// Of scales that all ranks share, where a checkpoint holds rank 0's for all. On all ranks; throws on all of them, and
// names the slot and the ranks.
void check_scales(Host&, const std::string& kind, const DelayedScaling::Snapshot& mine);

}  // namespace octet::BACKEND
