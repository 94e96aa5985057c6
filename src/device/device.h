#pragma once
// The whole contract with the hardware: the device, its streams and events, memory, copies, arenas. One implementation
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
    int index = 0;  // which card, by local rank
    bool deterministic = true;
    bool poison = false;      // fill memory with 0xFF (NaN in every float format) when it is reserved, rewound or reset
    bool profile = false;     // time every kernel class; costs speed
    bool time_waits = false;  // time Kernel::wait alone; costs nothing to speak of
    int collective_ctas = 0;  // most thread blocks that a collective takes from the products; 0: the library's choice
    std::string plan_cache;   // file with the product plans that timing chose; empty: none
    Target target{};          // plan engine: what to plan for. gpu: who attends, and the card as which it behaves, if
                              // that has fewer abilities than the one that is there
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
Target target_of_card(int index);  // as a Device's there; takes no memory on the card, which is another rank's

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
  void wait(Stream&) const;                        // work given to the stream from now on waits for this point. If
                                                   // profiling, a normal stream's waiting counts as Kernel::wait
  void synchronize() const;                        // the host waits for it
  double seconds_since(const Event& start) const;  // both must have happened

 private:
  void* native_ = nullptr;
};

// Work that a stream is given many times. On a card the first run is plain, as every kind of preparation happens in it
// (plans of products, workspaces, loading of kernels); the second is recorded as a CUDA graph, and from then on one
// launch starts all of it. Hence the work must give the device the same calls with the same arguments each time: what
// differs between runs lies in device memory. Work in which the host waits for the device cannot be recorded, and is
// not while the device profiles: such runs stay plain. The cpu and the plan engine always run plainly.
class Recording {
 public:
  explicit Recording(Stream&);
  ~Recording();
  Recording(const Recording&) = delete;
  void run(const std::function<void()>& work);  // of the host's part of `work` nothing happens in a replay
  void forget();                                // what is run next is other work

 private:
  Stream& stream_;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

void* device_alloc(Device&, size_t bytes);  // SystemError with sizes if there is not enough
void device_free(Device&, void*) noexcept;
void* pinned_alloc(size_t bytes);  // host memory that asynchronous copies may use
void pinned_free(void*) noexcept;
void copy_to_device(Stream&, void* dst, const void* src, size_t bytes);  // src must live until the stream gets there
void copy_to_host(Stream&, void* dst, const void* src, size_t bytes);    // likewise dst; pinned for true asynchrony
void copy(Stream&, Tensor dst, Tensor src);                              // same dtype and size, on the device
void fill_byte(Stream&, void* p, int byte, size_t bytes);
inline void fill_zero(Stream& s, Tensor t) { fill_byte(s, t.data, 0, t.bytes()); }

// Bump allocator over one reservation whose size the plan engine found.
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
  static constexpr size_t kAlign = 256;  // TMA, cuBLASLt and vector loads want 16 to 128
  Stream& stream_;
  const char* name_;
  size_t capacity_, used_ = 0, peak_ = 0;
  char* base_;
};

}  // namespace octet::BACKEND
