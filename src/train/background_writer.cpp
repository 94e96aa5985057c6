#include "train/background_writer.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace octet::BACKEND {
namespace {
constexpr int kThreads = 4;  // one of them hardly fills a fast disk, as each also computes checksums
}  // namespace

BackgroundWriter::BackgroundWriter(int64_t room, int64_t buffer_bytes)
    : buffer_bytes_(buffer_bytes), most_(std::max<int64_t>(2, room / buffer_bytes)) {
  try {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // fewer will do
    if (threads_.empty()) throw;
  }
}
BackgroundWriter::~BackgroundWriter() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
}

template <class Condition>
void BackgroundWriter::wait_for(std::unique_lock<std::mutex>& lock, std::atomic<int64_t>& pulse,
                                Condition&& condition) {
  for (int64_t seen = written_; !condition(); seen = written_) {
    changed_.wait(lock);
    if (written_ > seen) ++pulse;
  }
}

BackgroundWriter::Buffer BackgroundWriter::take(std::atomic<int64_t>& pulse) {
  {
    std::unique_lock lock(mutex_);
    done_ = false;
    wait_for(lock, pulse, [&] { return !empty_.empty() || made_ < most_; });
    ++busy_;
    if (!empty_.empty()) {
      Buffer b = std::move(empty_.back());
      empty_.pop_back();
      return b;
    }
    ++made_;
  }
  ++pulse;  // page-locked memory takes its time
  try {
    return {.memory = pinned_array<std::byte>(buffer_bytes_)};
  } catch (const SystemError&) {  // then those that there are have to do
    const std::lock_guard lock(mutex_);
    most_ = --made_, --busy_;
    if (made_ == 0) throw;
  }
  return take(pulse);
}

void BackgroundWriter::reserve(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  use_device_ = device_of_this_thread();
  wanted_ = std::min(most_, bytes / buffer_bytes_ + 1);
  changed_.notify_all();
}
int64_t BackgroundWriter::reserved() const {
  const std::lock_guard lock(mutex_);
  return (made_ - makes_) * buffer_bytes_;
}

// What fails here is met again, and told, where memory is needed.
void BackgroundWriter::make_ahead(std::unique_lock<std::mutex>& lock) {
  makes_ = true, ++made_;
  const auto use_device = use_device_;
  lock.unlock();
  Buffer b;
  try {
    use_device();
    b.memory = pinned_array<std::byte>(buffer_bytes_);
  } catch (const std::exception&) {}
  lock.lock();
  makes_ = false;
  if (b.memory) empty_.push_back(std::move(b));
  else wanted_ = --made_;
}

void BackgroundWriter::add(Stream& s, Tensor t, Write write, std::atomic<int64_t>& pulse) {
  const size_t element = size_of(t.dtype), all = t.bytes();
  for (size_t from = 0; from < all;) {
    if (!filling_.memory) filling_ = take(pulse);
    const size_t room = (size_t(buffer_bytes_) - filling_.used) / element * element, bytes = std::min(room, all - from);
    copy_to_host(s, filling_.memory.get() + filling_.used, static_cast<const std::byte*>(t.data) + from, bytes);
    filling_.pieces.push_back({write, int64_t(from / element), filling_.used, bytes});
    filling_.used += (bytes + 7) / 8 * 8;
    from += bytes;
    if (filling_.used + 8 > size_t(buffer_bytes_)) hand_over(s);
  }
}

void BackgroundWriter::hand_over(Stream& s) {
  s.synchronize();
  const std::lock_guard lock(mutex_);
  full_.push_back(std::exchange(filling_, {}));
  changed_.notify_all();
}

void BackgroundWriter::end(Stream& s, std::function<void()> last) {
  if (filling_.memory) hand_over(s);
  const std::lock_guard lock(mutex_);
  done_ = false;
  last_ = std::move(last);
  changed_.notify_all();
}

bool BackgroundWriter::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void BackgroundWriter::wait(std::atomic<int64_t>& pulse) {
  std::unique_lock lock(mutex_);
  wait_for(lock, pulse, [&] { return done_; });
  if (const std::exception_ptr failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
}

// Unless something has failed before.
void BackgroundWriter::attempt(const std::function<void()>& f) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || stops_) return;
  }
  try {
    f();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

void BackgroundWriter::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto ends = [&] { return last_ && busy_ == 0; };
    const auto makes = [&] { return made_ < wanted_ && !makes_; };
    changed_.wait(lock, [&] { return stops_ || !full_.empty() || ends() || makes(); });
    if (stops_) return;
    if (full_.empty() && !ends()) {
      make_ahead(lock);
    } else if (full_.empty()) {
      const std::function<void()> last = std::exchange(last_, nullptr);
      lock.unlock();
      attempt(last);
      lock.lock();
      done_ = true;
    } else {
      Buffer b = std::move(full_.front());
      full_.pop_front();
      for (const Piece& p : std::exchange(b.pieces, {})) {
        lock.unlock();
        attempt([&] { p.write(p.first, {b.memory.get() + p.begin, p.bytes}); });
        lock.lock();
        ++written_;
        changed_.notify_all();
      }
      b.used = 0;
      empty_.push_back(std::move(b));
      --busy_;
    }
    changed_.notify_all();
  }
}

}  // namespace octet::BACKEND
