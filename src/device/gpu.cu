// The gpu engine's device: CUDA's runtime behind device.h. The only kernel here tells which
// code the card runs.
#include <algorithm>
#include <utility>

#include "device/gpu.h"
#include "device/gpu_code.h"

#if __has_include(<nvtx3/nvToolsExt.h>)  // NVTX is header-only: it looks for a profiler at run time
#include <nvtx3/nvToolsExt.h>
#define OCTET_RANGE_PUSH(name) nvtxRangePushA(name)
#define OCTET_RANGE_POP() nvtxRangePop()
#else
#define OCTET_RANGE_PUSH(name) void(name)
#define OCTET_RANGE_POP() void()
#endif

namespace octet::BACKEND {
namespace {

double gib(size_t bytes) { return double(bytes) / double(size_t{1} << 30); }

struct DeviceMemory {
  size_t free = 0, total = 0;
};
DeviceMemory device_memory(const Device::Impl& d) {
  CUDA_CHECK(cudaSetDevice(d.index));
  DeviceMemory m;
  CUDA_CHECK(cudaMemGetInfo(&m.free, &m.total));
  return m;
}

}  // namespace

bool device_available() { return device_count() > 0; }

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();  // no driver or no card is an answer here, not an error for the next check to find
  return 0;
}

namespace {
cudaDeviceProp properties_of(int index) {  // makes no context, which would take memory
  const int count = device_count();
  if (index < 0 || index >= count)
    bad_input("the rank wants GPU ", index, " of this machine, but CUDA sees ", count,
              count ? ": start one rank a GPU (CUDA_VISIBLE_DEVICES limits what is seen)"
                    : ": check that the driver is loaded (nvidia-smi), or set \"device\" to \"cpu\"");
  cudaDeviceProp p{};
  CUDA_CHECK(cudaGetDeviceProperties(&p, index));
  return p;
}
Target target_of(const cudaDeviceProp& p) {
  return {.cuda = true, .compute_capability = 10 * p.major + p.minor, .multiprocessors = p.multiProcessorCount};
}

__global__ void code_kernel(GpuCode* code) {
#ifdef __CUDA_ARCH__
  code->architecture = __CUDA_ARCH__ / 10;
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  code->hopper = true;
#endif
}
GpuCode code_of_card() {  // the current one
  GpuCode code;
  cudaFuncAttributes attributes{};
  switch (const cudaError_t e = cudaFuncGetAttributes(&attributes, code_kernel)) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion:  // which the driver cannot compile
    case cudaErrorJitCompilerNotFound:
      (void)cudaGetLastError();
      return code;
    default:
      CUDA_CHECK(e);
  }
  GpuCode* there = nullptr;
  CUDA_CHECK(cudaMalloc(&there, sizeof code));
  CUDA_CHECK(cudaMemset(there, 0, sizeof code));
  code_kernel<<<1, 1>>>(there);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaMemcpy(&code, there, sizeof code, cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaFree(there));
  return code;
}
void refuse_unfit(const cudaDeviceProp& p, int index) {
  const int capability = 10 * p.major + p.minor;
  const std::string why = unfit(capability, code_of_card());
  if (why.empty()) return;
  if (capability < 80)
    bad_input("GPU ", index, " (", p.name, ") has compute capability ", p.major, ".", p.minor,
              "; this program needs 8.0 (A100) or more. Set \"device\" to \"cpu\"");
  bad_input("GPU ", index, " (", p.name, ") has compute capability ", p.major, ".", p.minor, ", and ", why,
            ": build it with -DOCTET_CUDA_ARCHITECTURES=", architecture_for(capability),
            " (several are separated by semicolons), or set \"device\" to \"cpu\"");
}
}  // namespace

Target target_of_card(int index) { return target_of(properties_of(index)); }

Device::Device(const Options& o) : options_(o), impl_(std::make_unique<Impl>()) {
  const cudaDeviceProp p = properties_of(o.index);
  CUDA_CHECK(cudaSetDevice(o.index));
  refuse_unfit(p, o.index);
  target_ = target_of(p);
  if (const int as = o.target.compute_capability) target_.compute_capability = std::min(as, target_.compute_capability);
  target_.attention = o.target.attention;
  target_.deterministic = o.deterministic;
  impl_->index = o.index;
  impl_->name = p.name;
  CUBLAS_CHECK(cublasLtCreate(&impl_->lt));
}
Device::~Device() = default;

std::string Device::name() const { return impl_->name; }
size_t Device::total_bytes() const { return device_memory(*impl_).total; }
size_t Device::used_bytes() const {
  const DeviceMemory m = device_memory(*impl_);
  return m.total - m.free;
}
WorkLog Device::take_work() { return impl_->profile.take(); }

Device::Impl::~Impl() {
  attention.reset();
  products.reset();  // before the handles that both use
  for (const auto& [stream, p] : workspaces) cudaFree(p);
  if (lt) cublasLtDestroy(lt);
}

void* Device::Impl::workspace(Stream& s) {
  void*& p = workspaces[raw(s)];
  if (!p) p = device_alloc(s.device(), kProductWorkspace);  // cudaMalloc aligns to 256 bytes at least
  return p;
}

Profile::~Profile() {
  for (const Record& r : records_) free_.insert(free_.end(), {r.start, r.stop});
  for (cudaEvent_t e : free_) cudaEventDestroy(e);
}

cudaEvent_t Profile::event() {
  cudaEvent_t e = nullptr;
  if (free_.empty()) {
    CUDA_CHECK(cudaEventCreate(&e));
  } else {
    e = free_.back();
    free_.pop_back();
  }
  return e;
}

void Profile::start(Stream& s, Kernel k) {
  if (depth_++ > 0) return;
  constexpr size_t kMostRecords = 1 << 14;  // bounds the number of events where take() is never called
  if (records_.size() >= kMostRecords) collect();
  records_.push_back({k, event(), event()});
  OCTET_RANGE_PUSH(name_of(k));
  CUDA_CHECK(cudaEventRecord(records_.back().start, raw(s)));
}

void Profile::stop(Stream& s) noexcept {
  if (--depth_ > 0) return;
  (void)cudaEventRecord(records_.back().stop, raw(s));  // called by a destructor: collect() reports errors
  OCTET_RANGE_POP();
}

void Profile::collect() {
  for (const Record& r : records_) {
    float milliseconds = 0;
    CUDA_CHECK(cudaEventSynchronize(r.stop));
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, r.start, r.stop));
    Work& w = sums_[size_t(r.kernel)];
    w.seconds += 1e-3 * double(milliseconds);
    ++w.calls;
    free_.insert(free_.end(), {r.start, r.stop});
  }
  records_.clear();
}

WorkLog Profile::take() {
  collect();
  return std::exchange(sums_, {});
}

Stream::Stream(Device& d, Priority priority) : device_(d), priority_(priority) {
  CUDA_CHECK(cudaSetDevice(d.impl().index));
  int lowest = 0, highest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t s = nullptr;
  CUDA_CHECK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, priority == Priority::high ? highest : lowest));
  native_ = s;
}
Stream::~Stream() {
  auto& workspaces = device_.impl().workspaces;
  if (const auto found = workspaces.find(raw(*this)); found != workspaces.end()) {
    cudaFree(found->second);
    workspaces.erase(found);
  }
  cudaStreamDestroy(raw(*this));
}
void Stream::synchronize() {
  ++device_.impl().host_waits;
  CUDA_CHECK(cudaStreamSynchronize(raw(*this)));
}

Event::Event(Device& d) {
  CUDA_CHECK(cudaSetDevice(d.impl().index));
  cudaEvent_t e = nullptr;
  CUDA_CHECK(cudaEventCreate(&e));
  native_ = e;
}
Event::~Event() { cudaEventDestroy(static_cast<cudaEvent_t>(native_)); }
void Event::record(Stream& s) { CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(native_), raw(s))); }
void Event::wait(Stream& s) const {
  const auto wait = [&] { CUDA_CHECK(cudaStreamWaitEvent(raw(s), static_cast<cudaEvent_t>(native_), 0)); };
  if (s.priority() == Stream::Priority::high) return wait();  // the side stream waiting for its inputs costs no time
  const Timed timed(s, Kernel::wait);
  wait();
}
void Event::synchronize() const { CUDA_CHECK(cudaEventSynchronize(static_cast<cudaEvent_t>(native_))); }
double Event::seconds_since(const Event& start) const {
  float milliseconds = 0;
  CUDA_CHECK(
      cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(start.native_), static_cast<cudaEvent_t>(native_)));
  return 1e-3 * double(milliseconds);
}

struct Recording::Impl {
  bool prepared = false;  // the first run is over, and this work may be captured
  cudaGraphExec_t graph = nullptr;
  ~Impl() { forget(); }
  void forget() {
    if (graph) cudaGraphExecDestroy(graph);  // CUDA lets a launch under way finish
    graph = nullptr;
    prepared = false;
  }
};
Recording::Recording(Stream& s) : stream_(s), impl_(std::make_unique<Impl>()) {}
Recording::~Recording() = default;
void Recording::forget() { impl_->forget(); }

void Recording::run(const std::function<void()>& work) {
  Device& d = stream_.device();
  if (impl_->graph) {
    CUDA_CHECK(cudaGraphLaunch(impl_->graph, raw(stream_)));
    return;
  }
  if (!impl_->prepared) {
    const int64_t waits = d.impl().host_waits;
    work();
    impl_->prepared = d.impl().host_waits == waits && !d.options().profile && !d.options().time_waits;
    return;
  }
  cudaGraph_t calls = nullptr;  // captured from this thread only: other ranks may be threads, and allocate meanwhile
  CUDA_CHECK(cudaStreamBeginCapture(raw(stream_), cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {  // end the capture, or errors of the stream would hide this one
    if (cudaStreamEndCapture(raw(stream_), &calls) == cudaSuccess) cudaGraphDestroy(calls);
    (void)cudaGetLastError();
    throw;
  }
  CUDA_CHECK(cudaStreamEndCapture(raw(stream_), &calls));
  const cudaError_t made = cudaGraphInstantiate(&impl_->graph, calls, 0);
  cudaGraphDestroy(calls);
  CUDA_CHECK(made);
  CUDA_CHECK(cudaGraphLaunch(impl_->graph, raw(stream_)));
}

void* device_alloc(Device& d, size_t bytes) {
  void* p = nullptr;
  CUDA_CHECK(cudaSetDevice(d.impl().index));
  const cudaError_t error = cudaMalloc(&p, bytes ? bytes : 1);  // never null: an empty tensor is still a tensor
  if (error == cudaSuccess) return p;
  (void)cudaGetLastError();
  if (error != cudaErrorMemoryAllocation) CUDA_CHECK(error);
  const DeviceMemory m = device_memory(d.impl());
  throw SystemError(concat("GPU ", d.impl().index, " (", d.name(), ") has no room for ", gib(bytes),
                           " GiB: ", gib(m.free), " GiB of ", gib(m.total),
                           " GiB are free. Check whether other processes use it (nvidia-smi); otherwise use a smaller "
                           "micro-batch, recompute more blocks or spread the run over more ranks (octet plan "
                           "shows what each would save)"));
}
void device_free(Device&, void* p) noexcept { cudaFree(p); }

void* pinned_alloc(size_t bytes) {
  void* p = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocPortable);  // pinned for every GPU: ranks may be threads
  if (error == cudaSuccess) return p;
  (void)cudaGetLastError();
  if (error != cudaErrorMemoryAllocation) CUDA_CHECK(error);
  throw SystemError(concat("the machine has no room for ", gib(bytes),
                           " GiB of page-locked memory: check what else uses its memory (free -g), and whether a "
                           "container or job limits it"));
}
void pinned_free(void* p) noexcept { cudaFreeHost(p); }
std::function<void()> device_of_this_thread() {
  int index = 0;
  CUDA_CHECK(cudaGetDevice(&index));
  return [index] { CUDA_CHECK(cudaSetDevice(index)); };
}

void copy_to_device(Stream& s, void* dst, const void* src, size_t bytes) {
  CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, raw(s)));
}
void copy_to_host(Stream& s, void* dst, const void* src, size_t bytes) {
  CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, raw(s)));
}
void copy(Stream& s, Tensor dst, Tensor src) {
  CHECK(dst.dtype == src.dtype && dst.numel() == src.numel(), name_of(dst.dtype), dst.shape, " = ", name_of(src.dtype),
        src.shape);
  const Timed timed(s, Kernel::copy);
  CUDA_CHECK(cudaMemcpyAsync(dst.data, src.data, src.bytes(), cudaMemcpyDeviceToDevice, raw(s)));
}
void fill_byte(Stream& s, void* p, int byte, size_t bytes) {
  const Timed timed(s, Kernel::copy);
  CUDA_CHECK(cudaMemsetAsync(p, byte, bytes, raw(s)));
}

}  // namespace octet::BACKEND
