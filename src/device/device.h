#pragma once
// The whole interface to the hardware: the device, its streams and events, memory, copies, arenas. One implementation
// per engine: device/cpu.cpp, device/gpu.cu, device/plan.cpp.
#include <functional>
#include <memory>

#include "config/plan.h"
#include "tensor/operand.h"

namespace octet::BACKEND {

// One per rank. Holds what lives as long as the rank: library handles, cached product plans, counters.
class Device {
 public:
  struct Options {
    int index = 0;  // of the GPU: the rank's number on its machine
    bool deterministic = true;
    bool poison = false;      // fill memory with 0xFF (NaN in every float format) when it is reserved, rewound or reset
    bool profile = false;     // time every kernel class, at some cost in speed
    bool time_waits = false;  // time Kernel::wait alone, at hardly any cost
    int collective_ctas = 0;  // thread blocks that a collective may occupy at most; 0: NCCL's choice
    std::string plan_cache;   // file of tuned matrix products (ops/tune.h); empty: none
    Target target{};          // plan engine: what to plan for. gpu: the choice of attention, and perhaps a
                              // lesser card to behave as
  };
  explicit Device(const Options&);
  ~Device();
  Device(const Device&) = delete;

  const Target& target() const { return target_; }
  const Options& options() const { return options_; }
  std::string name() const;    // "NVIDIA H200", "CPU, 2 threads"
  size_t total_bytes() const;  // memory of the device
  size_t used_bytes() const;   // as the driver reports it: arenas, libraries, context, and others' use
  WorkLog take_work();         // since the last call: plan counts, gpu times if profiling; empty otherwise
  struct Impl;
  Impl& impl() { return *impl_; }  // engine-private: handles and caches

 private:
  Options options_;
  Target target_;
  std::unique_ptr<Impl> impl_;
};

bool device_available();
int device_count();
Target target_of_card(int index);  // the Target of a Device there; creates no context and takes no memory on the card

// In-order queue of device work. On the cpu every call completes before it returns.
class Stream {
 public:
  enum class Priority { normal, high };
  explicit Stream(Device&, Priority = Priority::normal);
  ~Stream();
  Stream(const Stream&) = delete;
  Device& device() const { return device_; }
  const Target& target() const { return device_.target(); }
  void synchronize();
  void* native() const { return native_; }
  Priority priority() const { return priority_; }

 private:
  Device& device_;
  Priority priority_;
  void* native_ = nullptr;
};

class Event {  // a point in a stream
 public:
  explicit Event(Device&);
  ~Event();
  Event(const Event&) = delete;
  void record(Stream&);
  void wait(Stream&) const;                        // later work in that stream waits for this point; when profiling,
                                                   // the waits of a normal stream count as Kernel::wait
  void synchronize() const;                        // the host waits for this point
  double seconds_since(const Event& start) const;  // both must have happened

 private:
  void* native_ = nullptr;
};

// Work that a stream repeats many times, as a CUDA graph. The first run is an ordinary one, in which everything is
// prepared (plans of products, workspaces, loading of kernels); the second is captured; every later one is a single
// graph launch. So the work must make the same calls with the same arguments each time: what differs between runs lies
// in device memory. Work that synchronizes its stream is not captured, and nothing is while profiling: it runs as
// usual, as everything does on the cpu and plan engines. Work that waits for an Event cannot be recorded.
class Recording {
 public:
  explicit Recording(Stream&);
  ~Recording();
  Recording(const Recording&) = delete;
  void run(const std::function<void()>& work);  // a replay does not call it: its host code runs twice at most
  void forget();                                // the next run is different work: start over

 private:
  Stream& stream_;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

void* device_alloc(Device&, size_t bytes);  // SystemError with sizes if there is not enough
void device_free(Device&, void*) noexcept;
void* pinned_alloc(size_t bytes);  // page-locked host memory, for asynchronous copies
void pinned_free(void*) noexcept;
// Another thread that calls pinned_alloc() first calls what this returns: then it uses the calling thread's device.
std::function<void()> device_of_this_thread();
struct PinnedDeleter {
  void operator()(void* p) const noexcept { pinned_free(p); }
};
template <class T>
using PinnedArray = std::unique_ptr<T[], PinnedDeleter>;
template <class T>
PinnedArray<T> pinned_array(int64_t count) {  // uninitialised
  return PinnedArray<T>(static_cast<T*>(pinned_alloc(size_t(count) * sizeof(T))));
}
void copy_to_device(Stream&, void* dst, const void* src, size_t bytes);  // src must live until the stream has copied it
void copy_to_host(Stream&, void* dst, const void* src, size_t bytes);    // likewise dst; asynchronous if it is pinned
void copy(Stream&, Tensor dst, Tensor src);                              // same dtype and size, on the device
void fill_byte(Stream&, void* p, int byte, size_t bytes);
inline void fill_zero(Stream& s, Tensor t) { fill_byte(s, t.data, 0, t.bytes()); }

// A bump allocator over one reservation of the size that the plan engine found.
class Arena {
 public:
  Arena(Stream&, const char* name, size_t capacity);
  ~Arena();
  Arena(const Arena&) = delete;

  Tensor alloc(DType, Shape);  // throws if the plan did not foresee it
  size_t mark() const { return used_; }
  void rewind(size_t mark);  // gives back everything allocated since mark()
  void reset() { rewind(0); }
  void* base() const { return base_; }
  size_t peak() const { return peak_; }
  size_t capacity() const { return capacity_; }

  class Scope {  // rewinds at its end
   public:
    explicit Scope(Arena& a) : arena_(a), mark_(a.mark()) {}
    ~Scope() { arena_.rewind(mark_); }
    Scope(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t mark_;
  };

 private:
  static constexpr size_t kAlign = 256;  // TMA, cuBLASLt and vector loads need 16 to 128
  Stream& stream_;
  const char* name_;
  size_t capacity_, used_ = 0, peak_ = 0;
  char* base_;
};

}  // namespace octet::BACKEND
