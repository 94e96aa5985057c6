#pragma once
// The check of parallel.check_every: replicated state is bitwise equal on all ranks that hold it.
#include "train/session.h"

namespace octet::BACKEND {

// Throws an error that names the tensor and the ranks. Copies whole weights to the host and hashes them there: for
// llama2_7b on one GPU this takes seconds.
void check_agreement(Session&);

}  // namespace octet::BACKEND
