#include "host/signals.h"

#include <atomic>

namespace octet {
namespace {

std::atomic<bool> any{false};  // the one thing a signal handler may touch
void on_signal(int) { any = true; }

}  // namespace

bool Signals::caught() { return any; }

Signals::Signals() {
  any = false;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART | SA_RESETHAND;  // no save fails of it; a second one ends the program at once
  sigaction(SIGTERM, &action, &term_);
  sigaction(SIGINT, &action, &int_);
  sigaction(SIGHUP, nullptr, &hup_);
  if (hup_.sa_handler == SIG_IGN) return;  // set by nohup: the run outlives its terminal
  action.sa_flags = SA_RESTART;  // more of them change nothing: a shell and the kernel both tell of a closed terminal
  sigaction(SIGHUP, &action, nullptr);
}

Signals::~Signals() {
  sigaction(SIGTERM, &term_, nullptr);
  sigaction(SIGINT, &int_, nullptr);
  if (!any) sigaction(SIGHUP, &hup_, nullptr);  // else the last lines of the log still come
}

}  // namespace octet
