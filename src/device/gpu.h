#pragma once
// Inside of the gpu engine's device: raw handles, checked calls, and what lives as long as the rank. Only device/gpu.cu
// and ops/gpu, comm/gpu include it. A Device and its streams belong to the thread that made the Device.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "device/device.h"

// Kernel launches:  kernel<<<...>>>(...);  CUDA_CHECK(cudaGetLastError());
#define CUDA_CHECK(call)                                                                                      \
  do {                                                                                                        \
    if (const cudaError_t e_ = (call); e_ != cudaSuccess) [[unlikely]]                                        \
      ::octet::fail(__FILE__, __LINE__, #call ": ", cudaGetErrorString(e_), " (", cudaGetErrorName(e_), ")"); \
  } while (0)
#define CUBLAS_CHECK(call)                                                                                        \
  do {                                                                                                            \
    if (const cublasStatus_t e_ = (call); e_ != CUBLAS_STATUS_SUCCESS) [[unlikely]]                               \
      ::octet::fail(__FILE__, __LINE__, #call ": ", cublasLtGetStatusString(e_), " (", cublasLtGetStatusName(e_), \
                    ")");                                                                                         \
  } while (0)

namespace octet::BACKEND {

inline cudaStream_t raw(const Stream& s) { return static_cast<cudaStream_t>(s.native()); }

// Bytes that cuBLASLt may use beside its operands: what Transformer Engine gives it on Hopper.
inline constexpr size_t kProductWorkspace = size_t{32} << 20;

// Times of ops by kernel class, from a pair of events around each. Events are used again.
class Profile {
 public:
  ~Profile();
  void start(Stream&, Kernel);
  void stop(Stream&) noexcept;
  WorkLog take();

 private:
  struct Record {
    Kernel kernel;
    cudaEvent_t start, stop;
  };
  cudaEvent_t event();
  void settle();  // waits for the recorded ops and adds up their times

  std::vector<Record> records_;
  std::vector<cudaEvent_t> free_;
  WorkLog sums_{};
  int depth_ = 0;  // an op called by an op is part of its caller
};

struct Device::Impl {
  int index = 0;
  std::string name;
  cublasLtHandle_t lt = nullptr;
  std::unordered_map<cudaStream_t, void*> workspaces;  // kProductWorkspace bytes each: two streams must not share one
  std::shared_ptr<void> products;                      // ops/gpu/gemm_plans.h
  std::shared_ptr<void> attention;                     // cuDNN's handle and plans, where attention goes through it
  Profile profile;
  int64_t host_waits = 0;  // how often the host waited for the device: what did so cannot be part of a graph

  Impl() = default;
  Impl(const Impl&) = delete;
  ~Impl();
  void* workspace(Stream&);  // 256-byte aligned; allocated when first asked for
};

// First line of every op. Nothing, unless the device profiles.
class Timed {
 public:
  Timed(Stream& s, Kernel k) : stream_(times(s.device().options(), k) ? &s : nullptr) {
    if (stream_) stream_->device().impl().profile.start(*stream_, k);
  }
  ~Timed() {
    if (stream_) stream_->device().impl().profile.stop(*stream_);
  }
  Timed(const Timed&) = delete;

 private:
  static bool times(const Device::Options& o, Kernel k) { return o.profile || (o.time_waits && k == Kernel::wait); }
  Stream* stream_;
};

}  // namespace octet::BACKEND
