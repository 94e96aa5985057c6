#pragma once
// Signals: SIGTERM, SIGINT and SIGHUP ask a run to save and end; while an object of this class lives, they do no more.
#include <csignal>

namespace octet {

class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  static bool caught();  // one of them, since the newest object was made

 private:
  struct sigaction term_ = {}, int_ = {}, hup_ = {};  // what was set before
};

}  // namespace octet
