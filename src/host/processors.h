#pragma once
// Processors of a machine, dealt out among the ranks of a run that may use them.
#include <sched.h>

#include <cstdint>
#include <span>

#include "host/host.h"

namespace octet {

struct Processors {
  uint64_t machine = 0;  // the same for ranks that share it; 0: not known
  cpu_set_t allowed{};   // to this rank
};
Processors my_processors();

// How many processors are left for `mine` if each is shared by all that may use it, at least 1; 0 where nobody else may
// use any of them, or where that is not known.
int fair_share(const Processors& mine, std::span<const Processors> all);
int fair_share(Host&);  // of this rank: all ranks call it together

}  // namespace octet
