#pragma once
// What is mapped (text, weights) may be cut short by another program, or its disk may fail, while it is read: the
// system tells by SIGBUS. From here on that is a message that names the file, and exit code 3.

namespace octet {

void explain_bus_errors();  // before MPI starts, which else prints a stack for it

}  // namespace octet
