// Stands in for mpi.cpp in a build without MPI.
#include "base/check.h"
#include "host/host.h"
#include "host/launch.h"

namespace octet {

std::unique_ptr<Host> mpi_host(int*, char***) {
  if (const Launch l = launch(); l.ranks > 1)
    bad_input(l.ranks, " ranks were started, but this octet was built without MPI: install MPI's development files ",
              "(Debian: libopenmpi-dev), configure and build again; or start it alone");
  return nullptr;
}

}  // namespace octet
