#pragma once
// Writes device memory to files while its owner goes on: tensors are copied to page-locked host memory, from which
// threads write them. At most `room` bytes are on the host at once; where more is to be written, add() waits for the
// threads. The host memory is kept for the next use.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "device/device.h"

namespace octet::BACKEND {

class BackgroundWriter {
 public:
  explicit BackgroundWriter(int64_t room, int64_t buffer_bytes = int64_t{64} << 20);
  ~BackgroundWriter();  // drops what is not written yet
  BackgroundWriter(const BackgroundWriter&) = delete;

  // So much will be added at a time: a thread makes page-locked memory for it, as far as there is room, before it is
  // needed. That takes the system longer than copying to it, and add() would have to wait.
  void reserve(int64_t bytes);
  int64_t reserved() const;  // bytes of page-locked memory that there are
  // Calls write(first, bytes) on one of the threads, once for each piece of t: elements from `first` on.
  using Write = std::function<void(int64_t first, std::span<const std::byte>)>;
  void add(Stream&, Tensor t, Write write, std::atomic<int64_t>& pulse);
  void end(Stream&, std::function<void()> last);  // no more: calls `last` on a thread when all else is written
  bool done() const;                              // also if it failed
  // Waits until it is done; throws what a write or `last` threw first, after which nothing more was written. pulse
  // grows with each piece that is written meanwhile.
  void wait(std::atomic<int64_t>& pulse);

 private:
  struct Piece {
    Write write;
    int64_t first;
    size_t begin, bytes;  // in its buffer
  };
  struct Buffer {
    PinnedArray<std::byte> memory;
    size_t used = 0;
    std::vector<Piece> pieces;
  };
  Buffer take(std::atomic<int64_t>& pulse);
  void hand_over(Stream&);  // the buffer that is being filled
  void work();
  void make_ahead(std::unique_lock<std::mutex>&);
  void attempt(const std::function<void()>& f);
  template <class Condition>
  void wait_for(std::unique_lock<std::mutex>&, std::atomic<int64_t>& pulse, Condition&& condition);

  Buffer filling_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Buffer> empty_;
  std::deque<Buffer> full_;
  std::function<void()> last_;
  std::exception_ptr failure_;
  std::function<void()> use_device_;
  const int64_t buffer_bytes_;
  int64_t most_, made_ = 0, busy_ = 0;  // buffers: at most; so far; those that are filled or written from
  int64_t wanted_ = 0;                  // buffers that reserve() asked for
  bool makes_ = false;                  // a thread is at it: one, as the driver's own calls wait meanwhile
  int64_t written_ = 0;                 // pieces
  bool done_ = true, stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace octet::BACKEND
