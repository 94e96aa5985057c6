#include "host/signals.h"

#include <atomic>
#include <csignal>
#include <map>
#include <mutex>

namespace octet {
namespace {

std::atomic<bool> any{false}, wish{false};  // what a signal handler may touch
void on_signal(int) { any = true; }
void on_wish(int) { wish = true; }

std::mutex mutex;  // of what follows
int objects = 0;
std::map<int, struct sigaction> before;

void set(int signal, void (*handler)(int), int flags = 0) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART | flags;  // no save fails of it
  sigaction(signal, &action, &before[signal]);
}

// The constructors of libraries come before main: UCX's (which Open MPI 5 brings) takes SIGHUP, so that nobody sees any
// more what nohup had set, and its destructor gives back what it found. This comes before them: it notes how SIGHUP
// was, and lets them find it ignored, so that none ends a program that is done.
bool hangup_ignored = false;
void note_hangup(int, char**, char**) { hangup_ignored = std::signal(SIGHUP, SIG_IGN) == SIG_IGN; }
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)(int, char**, char**) = note_hangup;

}  // namespace

void restore_hangup() { std::signal(SIGHUP, hangup_ignored ? SIG_IGN : SIG_DFL); }

bool Signals::caught() { return any; }
bool Signals::asked_to_save() { return wish.exchange(false); }

Signals::Signals() {
  const std::lock_guard lock(mutex);
  if (objects++ > 0) return;  // another rank's: what has been caught since stays so
  any = wish = false;
  set(SIGTERM, on_signal, SA_RESETHAND);  // a second one ends the program at once
  set(SIGINT, on_signal, SA_RESETHAND);
  set(SIGUSR1, on_signal);
  set(SIGUSR2, on_wish);
  if (hangup_ignored) return;  // by nohup: the run outlives its terminal
  set(SIGHUP, on_signal);      // more of them change nothing: a shell and the kernel both tell of a closed terminal
}

// Only these end the program again. All is saved, and it ends by itself: the others must not make a failure of that.
Signals::~Signals() {
  const std::lock_guard lock(mutex);
  if (--objects > 0) return;
  for (const int signal : {SIGTERM, SIGINT}) sigaction(signal, &before[signal], nullptr);
}

}  // namespace octet
