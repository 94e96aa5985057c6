#pragma once
// Signals: SIGTERM, SIGINT, SIGHUP and SIGUSR1 ask a run to save and end, SIGUSR2 to save and go on; while an object of
// this class lives, they do no more. The objects of ranks that are threads of one process are as one. mpirun hands
// SIGUSR1 and SIGUSR2 on to its ranks and waits; a second after a SIGTERM or SIGINT of its own it kills them.
namespace octet {

class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  static bool caught();         // one that asks to end, since the oldest object was made
  static bool asked_to_save();  // SIGUSR2, since the last time that this was asked
};

// SIGHUP as the program was started with it, whatever libraries did to it since: called first in main.
void restore_hangup();

}  // namespace octet
