#pragma once
// A deadline for what a process waits in before its watchdog (train/watchdog.h) is there: MPI's start, a card's driver,
// the first words of the other ranks. One bad node would hold all others there without end.
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace octet {

inline constexpr double kMostForMpi = 1200;  // seconds: the launcher of a thousand ranks takes minutes

class Deadline {
 public:
  // The process ends with exit code 3 and this line if the object still lives after so long; 0 seconds: never.
  Deadline(double seconds, const std::string& line);
  ~Deadline();
  Deadline(const Deadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool met_ = false;
  std::thread thread_;
};

}  // namespace octet
