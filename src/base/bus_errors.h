#pragma once
// Reading a mapped file (text, weights) raises SIGBUS when another program truncates it or its disk fails. This turns
// the signal into a message that names the file, and exit code 3.

namespace octet {

void explain_bus_errors();  // installs the handler; call it before MPI installs its own

}  // namespace octet
