#pragma once
// What the environment says about how this process was started.
namespace octet {

struct Launch {
  int ranks = 1;
  bool through_mpi = false;  // by something that MPI_Init can talk to
};
Launch launch();

// OCTET_LOCAL_SIZE: ranks of one machine, instead of what is found (tests of several machines on one). 0: not set.
int forced_local_size();

}  // namespace octet
