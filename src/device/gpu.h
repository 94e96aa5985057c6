#pragma once
// Internals of the gpu engine's device: raw handles, checked calls, and what lives as long as the rank. Included by
// device/gpu.cu, ops/gpu and comm/gpu only. A Device and its streams belong to the thread that made the Device.
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

// cuBLASLt's workspace, per stream: as large as Transformer Engine's on Hopper.
inline constexpr size_t kProductWorkspace = size_t{32} << 20;

// Times ops by kernel class, with a pair of events around each op.
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
  void collect();  // waits for the recorded ops and adds up their times

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
  std::shared_ptr<void> products;                      // ProductPlans, ops/gpu/gemm_plans.h
  std::shared_ptr<void> attention;                     // cuDNN's handle and plans, if attention uses them
  Profile profile;
  int64_t host_waits = 0;  // Stream::synchronize() calls: work that makes one is not captured in a graph

  Impl() = default;
  Impl(const Impl&) = delete;
  ~Impl();
  void* workspace(Stream&);  // 256-byte aligned; allocated when first asked for
};

// The first line of every op: times it by kernel class, if the device profiles.
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
