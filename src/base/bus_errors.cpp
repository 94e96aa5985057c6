#include "base/bus_errors.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <span>

namespace octet {
namespace {

// The file that is mapped at `address`, or "": from lines "start-end rights offset device inode /path". A signal
// handler may call only async-signal-safe functions: open, read, close.
void find_mapping(uintptr_t address, std::span<char> name) {
  const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  char text[4096];
  uintptr_t bounds[2] = {};  // start, end
  int bound = 0;
  size_t length = 0;
  bool found = false;
  for (ssize_t n = 0; !found && (n = ::read(fd, text, sizeof text)) > 0;) {
    for (const char c : std::span(text, size_t(n))) {
      if (c == '\n') {
        found = bounds[0] <= address && address < bounds[1];
        if (found) break;
        bounds[0] = bounds[1] = 0, bound = 0, length = 0;
      } else if (length > 0 || c == '/') {
        if (length + 1 < name.size()) name[length++] = c;
      } else if (bound < 2) {
        if (c == '-' || c == ' ') ++bound;
        else bounds[bound] = bounds[bound] * 16 + uintptr_t(c <= '9' ? c - '0' : c - 'a' + 10);
      }
    }
  }
  ::close(fd);
  name[found ? length : 0] = '\0';
}

void say(const char* text) { [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text, std::strlen(text)); }

void on_bus_error(int signal, siginfo_t* info, void*) {
  if (info->si_code != BUS_ADRERR && info->si_code != BUS_OBJERR) {  // sent by a process, or faulty memory
    ::signal(signal, SIG_DFL);
    ::raise(signal);
    return;
  }
  char name[1024];
  find_mapping(reinterpret_cast<uintptr_t>(info->si_addr), name);
  say("octet: '");
  say(*name ? name : "a file in use");
  say("' cannot be read any more: it was cut short while it was in use, or its disk is full (/dev/shm: give it more "
      "room) or fails; put the whole file back and start again\n");
  ::_exit(3);
}

}  // namespace

void explain_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace octet
