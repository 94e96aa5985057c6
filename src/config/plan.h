#pragma once
// What the plan engine finds and the other engines use: the memory of every arena, and the work
// of a step by kernel class.
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace octet {

enum class AttentionKind { automatic, native, cudnn };  // the faster of the two; our own kernels; cuDNN's

// The card a plan is made for, and what the ops size their workspaces by. The cpu engine has cuda == false.
struct Target {
  bool cuda = false;
  int compute_capability = 0;  // 90 for Hopper
  int multiprocessors = 0;
  AttentionKind attention = AttentionKind::native;  // the others need cuDNN
  bool deterministic = true;                        // the same bits from run to run; always so on the cpu
  bool fp8() const { return !cuda || compute_capability >= 89; }
};

enum class Memory : uint8_t { weights, optimizer, gradients, saved, scratch, communication };
inline constexpr std::array<const char*, 6> kMemoryNames{"weights",     "optimizer", "gradients",
                                                         "activations", "scratch",   "communication"};

struct MemoryPlan {  // bytes of each arena
  std::array<size_t, kMemoryNames.size()> bytes{};
  size_t& operator[](Memory m) { return bytes[size_t(m)]; }
  size_t operator[](Memory m) const { return bytes[size_t(m)]; }
  size_t total() const {
    size_t sum = 0;
    for (size_t b : bytes) sum += b;
    return sum;
  }
  static constexpr size_t kUnbounded = size_t{1} << 50;
  static constexpr MemoryPlan unbounded() {  // for addresses without memory
    MemoryPlan p;
    p.bytes.fill(kUnbounded);
    return p;
  }
  bool operator==(const MemoryPlan&) const = default;
};

// Kernel classes, by which work is counted (plan engine), timed (octet bench --profile) and reported.
enum class Kernel : uint8_t {
  gemm_fp8,
  gemm_bf16,
  gemm_f32,
  attention_forward,
  attention_backward,
  norm,
  rope,
  activation,
  quantize,
  embedding,
  loss,
  optimizer,
  elementwise,
  scaling,
  copy,
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  wait,  // of the computing stream for others: communication that is not hidden
  count
};
constexpr const char* name_of(Kernel k) {
  return std::array{"gemm fp8",   "gemm bf16",      "gemm fp32",   "attention forward", "attention backward",
                    "norm",       "rope",           "activation",  "quantize",          "embedding",
                    "loss",       "optimizer",      "elementwise", "scaling",           "copy",
                    "all-gather", "reduce-scatter", "all-reduce",  "all-to-all",        "waiting"}[size_t(k)];
}
struct Work {
  double flops = 0, bytes = 0, seconds = 0;  // seconds: only where an engine measured
  int64_t calls = 0;
};
using WorkLog = std::array<Work, size_t(Kernel::count)>;

}  // namespace octet
