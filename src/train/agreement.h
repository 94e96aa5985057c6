#pragma once
// The check of parallel.check_every: what ranks hold in common is the same on all, to the bit.
#include "train/session.h"

namespace octet::BACKEND {

// Error that names the tensor and the ranks. Copies whole weights home and hashes them on the host: for llama2_7b on
// one GPU seconds, not milliseconds.
void check_agreement(Session&);

}  // namespace octet::BACKEND
