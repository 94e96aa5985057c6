#include "host/signals.h"

#include <atomic>

namespace octet {
namespace {

std::atomic<bool> any{false}, wish{false};  // what a signal handler may touch
void on_signal(int) { any = true; }
void on_wish(int) { wish = true; }

}  // namespace

bool Signals::caught() { return any; }
bool Signals::asked_to_save() { return wish.exchange(false); }

Signals::Signals() {
  any = wish = false;
  set(SIGTERM, on_signal, SA_RESETHAND);  // a second one ends the program at once
  set(SIGINT, on_signal, SA_RESETHAND);
  set(SIGUSR1, on_signal);
  set(SIGUSR2, on_wish);
  struct sigaction now {};
  sigaction(SIGHUP, nullptr, &now);
  if (now.sa_handler == SIG_IGN) return;  // set by nohup: the run outlives its terminal
  set(SIGHUP, on_signal);  // more of them change nothing: a shell and the kernel both tell of a closed terminal
}

void Signals::set(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART | flags;  // no save fails of it
  sigaction(signal, &action, &before_[signal]);
}

Signals::~Signals() {
  for (const auto& [signal, before] : before_)
    if (signal == SIGTERM || signal == SIGINT || !any) sigaction(signal, &before, nullptr);
  // else the last lines of the log still come
}

}  // namespace octet
