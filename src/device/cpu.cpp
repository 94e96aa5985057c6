// The CPU as a device: every call completes before it returns.
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/memory.h"
#include "device/device.h"

namespace octet::BACKEND {

struct Device::Impl {};

Device::Device(const Options& options) : options_(options) {}  // the default Target: no card, always deterministic
Device::~Device() = default;
namespace {
// Of addresses, beside the arenas: a thread's stack and the buffer of OpenBLAS, which without room for it would try
// again for ever.
constexpr int64_t kBesideOfThread = int64_t{136} << 20, kBeside = int64_t{64} << 20;
int64_t beside_arenas() { return omp_get_max_threads() * kBesideOfThread + kBeside; }
}  // namespace

std::string Device::name() const {
  const int threads = omp_get_max_threads();
  std::string name = concat("CPU, ", threads, threads == 1 ? " thread" : " threads");
  if (address_space_left() < INT64_MAX)
    name += concat(" (ulimit -v, of which OpenBLAS and the threads take ", beside_arenas() >> 20, " MiB)");
  return name;
}
size_t Device::total_bytes() const {
  const size_t machine = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
  const int64_t addresses = address_space_left();
  if (addresses == INT64_MAX) return machine;
  return std::min(machine, used_bytes() + size_t(std::max<int64_t>(0, addresses - beside_arenas())));
}
size_t Device::used_bytes() const {  // resident pages of this process, all its ranks together
  size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * size_t(sysconf(_SC_PAGESIZE));
}
WorkLog Device::take_work() { return {}; }

bool device_available() { return true; }
int device_count() { return 1; }
Target target_of_card(int) { return {}; }

Stream::Stream(Device& device, Priority priority) : device_(device), priority_(priority) {}
Stream::~Stream() = default;
void Stream::synchronize() {}

namespace {
using Clock = std::chrono::steady_clock;
Clock::time_point& time_of(void* native) { return *static_cast<Clock::time_point*>(native); }
}  // namespace

Event::Event(Device&) : native_(new Clock::time_point) {}
Event::~Event() { delete &time_of(native_); }
void Event::record(Stream&) { time_of(native_) = Clock::now(); }
void Event::wait(Stream&) const {}
void Event::synchronize() const {}
double Event::seconds_since(const Event& start) const {
  return std::chrono::duration<double>(time_of(native_) - time_of(start.native_)).count();
}

struct Recording::Impl {};
Recording::Recording(Stream& s) : stream_(s) {}
Recording::~Recording() = default;
void Recording::run(const std::function<void()>& work) { work(); }
void Recording::forget() {}

void* device_alloc(Device&, size_t bytes) {
  constexpr size_t kAlign = 256;
  if (bytes > size_t(PTRDIFF_MAX) - kAlign) throw SystemError(concat("no memory for ", bytes, " bytes"));
  const size_t rounded = bytes ? (bytes + kAlign - 1) / kAlign * kAlign : kAlign;  // an empty arena has an address too
  void* p = std::aligned_alloc(kAlign, rounded);
  if (!p) throw SystemError(concat("no memory for ", bytes, " bytes"));
  return p;
}
void device_free(Device&, void* p) noexcept { std::free(p); }
void* pinned_alloc(size_t bytes) {
  void* p = std::malloc(bytes ? bytes : 1);
  if (!p) throw SystemError(concat("no memory for ", bytes, " bytes"));
  return p;
}
void pinned_free(void* p) noexcept { std::free(p); }
std::function<void()> device_of_this_thread() {
  return [] {};
}

// Where a rank owns no part of a tensor, there are no bytes and perhaps a null address, which memcpy does not allow.
void copy_to_device(Stream&, void* dst, const void* src, size_t bytes) {
  if (bytes) std::memcpy(dst, src, bytes);
}
void copy_to_host(Stream&, void* dst, const void* src, size_t bytes) {
  if (bytes) std::memcpy(dst, src, bytes);
}
void copy(Stream&, Tensor dst, Tensor src) {
  CHECK(dst.dtype == src.dtype && dst.numel() == src.numel(), "copy of ", src.shape, " to ", dst.shape);
  if (src.bytes()) std::memmove(dst.data, src.data, src.bytes());
}
void fill_byte(Stream&, void* p, int byte, size_t bytes) {
  if (bytes) std::memset(p, byte, bytes);
}

}  // namespace octet::BACKEND
