// The plan engine's device hands out addresses without memory behind them (reading one on the host crashes, on purpose)
// and counts work instead of doing it.
#include "device/plan.h"

#include <cstdlib>
#include <cstring>
#include <utility>

namespace octet::BACKEND {

// Above every address of a process (2^47, or 2^56 with five-level page tables), so that nothing is ever there.
constexpr uintptr_t kFirstAddress = uintptr_t{1} << 58, kLastAddress = uintptr_t{1} << 62;

Device::Device(const Options& options)
    : options_(options), target_(options.target), impl_(std::make_unique<Impl>(Impl{.next_address = kFirstAddress})) {
  options_.poison = false;  // filling memory would count as work of the run
}
Device::~Device() = default;
std::string Device::name() const {
  if (!target_.cuda) return "plan for a CPU";
  return concat("plan for a GPU of compute capability ", target_.compute_capability / 10, ".",
                target_.compute_capability % 10);
}
size_t Device::total_bytes() const { return kLastAddress - kFirstAddress; }
size_t Device::used_bytes() const { return 0; }
WorkLog Device::take_work() { return std::exchange(impl_->work, {}); }
std::vector<ProductShape> take_products(Device& device) { return std::exchange(device.impl().products, {}); }

bool device_available() { return true; }
int device_count() { return 1; }
Target target_of_card(int) { return {}; }

Stream::Stream(Device& device, Priority priority) : device_(device), priority_(priority) {}
Stream::~Stream() = default;
void Stream::synchronize() {}

Event::Event(Device&) {}
Event::~Event() = default;
void Event::record(Stream&) {}
void Event::wait(Stream&) const {}
void Event::synchronize() const {}
double Event::seconds_since(const Event&) const { return 0; }

struct Recording::Impl {};
Recording::Recording(Stream& s) : stream_(s) {}
Recording::~Recording() = default;
void Recording::run(const std::function<void()>& work) { work(); }
void Recording::forget() {}

void* device_alloc(Device& device, size_t bytes) {  // no two allocations of a device overlap
  constexpr uintptr_t kAlign = 256;
  uintptr_t& next = device.impl().next_address;
  CHECK(bytes < kLastAddress - next - 2 * kAlign, "the plan engine ran out of addresses at ", bytes, " bytes");
  void* p = reinterpret_cast<void*>(next);
  next += (bytes + 2 * kAlign - 1) / kAlign * kAlign;  // at least one byte between two of them
  return p;
}
void device_free(Device&, void*) noexcept {}
void* pinned_alloc(size_t bytes) {  // real: the host reads and writes it
  void* p = std::malloc(bytes ? bytes : 1);
  if (!p) throw SystemError(concat("no memory for ", bytes, " bytes"));
  return p;
}
void pinned_free(void* p) noexcept { std::free(p); }
std::function<void()> device_of_this_thread() {
  return [] {};
}

void copy_to_device(Stream& s, void*, const void*, size_t bytes) { count(s, Kernel::copy, 0, double(bytes)); }
void copy_to_host(Stream& s, void* dst, const void*, size_t bytes) {
  if (bytes) std::memset(dst, 0, bytes);  // so that it is never read uninitialised
  count(s, Kernel::copy, 0, double(bytes));
}
void copy(Stream& s, Tensor dst, Tensor src) {
  CHECK(dst.dtype == src.dtype && dst.numel() == src.numel(), "copy of ", src.shape, " to ", dst.shape);
  count(s, Kernel::copy, 0, double(dst.bytes() + src.bytes()));
}
void fill_byte(Stream& s, void*, int, size_t bytes) { count(s, Kernel::copy, 0, double(bytes)); }

}  // namespace octet::BACKEND
