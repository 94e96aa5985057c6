#pragma once
// Issued: the collectives that were given to a card and have not ended, so that a watchdog can tell which one hangs.
#include <cuda_runtime.h>

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "config/plan.h"
#include "device/device.h"

namespace octet::BACKEND {

class Issued {
 public:
  explicit Issued(int card) : card_(card) {}
  ~Issued();
  Issued(const Issued&) = delete;
  void add(Stream&, Kernel, size_t bytes);  // all that the stream was given until now
  std::string first_not_ended();            // "reduce-scatter of 404.8 MB (number 1234)"; "" if all have; of any thread

 private:
  struct Entry {
    cudaEvent_t end;
    Kernel kernel;
    size_t bytes;
    int64_t number;
  };
  void forget_ended();

  const int card_;
  std::mutex mutex_;
  std::deque<Entry> entries_;  // in the order of issue
  std::vector<cudaEvent_t> free_;
  int64_t number_ = 0;
};

}  // namespace octet::BACKEND
