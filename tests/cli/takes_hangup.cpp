// A library that takes SIGHUP before main and gives back what it found after, as UCX's does. For test_signals.
#include <csignal>

namespace {

void ends_nothing(int) {}
struct Taken {
  Taken() : before(std::signal(SIGHUP, ends_nothing)) {}
  ~Taken() { std::signal(SIGHUP, before); }
  void (*before)(int);
} taken;

}  // namespace
