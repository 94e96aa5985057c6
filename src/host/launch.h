#pragma once
// What the environment says about how and where this process was started.
#include <string>

namespace octet {

struct Launch {
  int ranks = 1;
  bool through_mpi = false;  // by something that MPI_Init can talk to
};
Launch launch();

int launched_rank();         // of this process, as its launcher says before MPI is up; 0 if it says nothing
std::string machine_name();  // as the network knows it

// OCTET_LOCAL_SIZE: ranks of one machine, instead of what is found (tests of several machines on one). 0: not set.
int forced_local_size();

}  // namespace octet
