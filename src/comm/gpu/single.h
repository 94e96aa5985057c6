#pragma once
// The Comm of one rank.
#include "comm/comm.h"

namespace octet::BACKEND {

std::unique_ptr<Comm> make_single_comm();

}  // namespace octet::BACKEND
