#include "host/deadline.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "host/last_words.h"
#include "host/launch.h"

namespace octet {

Deadline::Deadline(double seconds, const std::string& line) {
  if (seconds <= 0) return;
  seconds += turn_of(launched_rank());
  thread_ = std::thread([this, seconds, text = "octet: " + line + "\n"] {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return met_; })) return;
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0) std::perror("octet");
    std::_Exit(3);  // the launcher ends the others: MPI cannot be spoken to from here
  });
}

Deadline::~Deadline() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    met_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace octet
