#include "comm/gpu/issued.h"

#include "base/check.h"
#include "base/progress.h"
#include "device/gpu.h"

namespace octet::BACKEND {
namespace {
constexpr size_t kMost = 4096;  // the host runs a few micro-batches ahead, so far fewer are under way

bool has_ended(cudaEvent_t e) {
  const cudaError_t state = cudaEventQuery(e);
  if (state == cudaErrorNotReady) (void)cudaGetLastError();  // an answer, not an error for the next call to report
  return state == cudaSuccess;
}
}  // namespace

Issued::~Issued() {
  for (const Entry& e : entries_) cudaEventDestroy(e.end);
  for (cudaEvent_t e : free_) cudaEventDestroy(e);
}

void Issued::add(Stream& s, Kernel kernel, size_t bytes) {
  const std::lock_guard lock(mutex_);
  forget_ended();
  cudaEvent_t end = nullptr;
  if (free_.empty()) {
    CUDA_CHECK(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
  } else {
    end = free_.back();
    free_.pop_back();
  }
  CUDA_CHECK(cudaEventRecord(end, raw(s)));
  entries_.push_back({end, kernel, bytes, ++number_});
}

void Issued::forget_ended() {
  while (!entries_.empty() && (entries_.size() >= kMost || has_ended(entries_.front().end))) {
    free_.push_back(entries_.front().end);
    entries_.pop_front();
  }
}

std::string Issued::first_not_ended() {
  const std::lock_guard lock(mutex_);
  if (cudaSetDevice(card_) != cudaSuccess) return "";
  forget_ended();
  if (entries_.empty()) return "";
  const Entry& e = entries_.front();
  return concat(name_of(e.kernel), " of ", human_bytes(double(e.bytes)), " (number ", e.number, ")");
}

}  // namespace octet::BACKEND
