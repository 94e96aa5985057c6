#pragma once
// Last words: why a rank ends, on standard error. What every rank would say, of a config that is wrong or a file that
// is not there, is said once: a rank stays silent if rank 0, or the first rank of its machine, fails with the same
// words (figures with units aside: memory that is free on each card). Whatever a rank fails of alone, it says, with its
// machine.
#include <cstdint>
#include <string>

#include "host/host.h"

namespace octet {

// Says it and ends the job on all ranks; a rank of threads or alone (Host::abort) returns. Call it before what other
// ranks may still use is torn down: they would fail of that, sooner and in other words.
void end_job(Host&, const std::string& message, int exit_code) noexcept;

// Says it where the ranks cannot talk yet. The launcher ends them all when the first one ends, so all but rank 0 wait
// before they speak.
void say_alone(const std::string& message) noexcept;

std::string name_of_rank(const Host&);  // "rank 3 on node17"; of a run of one rank ""
uint64_t word_of(const std::string& message);

// Seconds that a rank waits behind rank 0 with what all ranks notice at the same time; the first one that speaks ends
// the others.
double turn_of(int rank);

}  // namespace octet
