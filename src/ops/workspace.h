#pragma once
// Sizes of the workspaces that ops take, as functions of the target and the shapes: one rule for every engine, so that the
// plan is exact to the byte.
#include "ops/ops.h"

namespace octet::BACKEND {

// Rows P of the `partial` buffers of two-stage column sums, and elements of sum_of_squares' partial.
inline int64_t partial_rows(const Target& t) { return t.cuda ? 2 * t.multiprocessors : 16; }
inline int64_t partial_sums(const Target& t) { return t.cuda ? 4 * t.multiprocessors : 64; }

// Bytes of the attention workspaces. cuDNN takes bf16 only; everything else on a card goes to the native kernels.
inline bool attention_by_cudnn(const Target& t, DType plain) { return t.cuda && t.cudnn && plain == DType::bf16; }
inline constexpr int64_t kCudnnSlack = int64_t{32} << 20;  // of cuDNN's own workspace, beyond what the formulas name

// The parts of the backward workspace, in this order, each starting at a multiple of 256 bytes.
struct AttentionParts {
  int64_t delta = 0;  // (B,H,T) f32, rowsum(do*o)
  int64_t dq = 0;     // (N,H*D) f32, where dq is summed over tiles of keys
  int64_t own = 0;    // cuDNN's: its deterministic form keeps the T*T scores of one sequence, which go one by one
  int64_t total() const { return delta + dq + own; }
};
inline AttentionParts attention_backward_parts(const Target& t, const Attention& a, DType plain) {
  if (!t.cuda) return {};
  const auto aligned = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t H = a.heads.H, D = a.heads.D, T = a.T;
  AttentionParts parts{.delta = aligned(a.B * H * T * 4), .dq = aligned(a.B * T * H * D * 4)};
  if (!attention_by_cudnn(t, plain)) return parts;
  if (t.deterministic) parts.dq = 0;
  parts.own = kCudnnSlack + (t.deterministic ? aligned(H * T * T * 2) : 0);
  return parts;
}
inline int64_t attention_forward_workspace(const Target& t, const Attention&, DType plain) {
  return attention_by_cudnn(t, plain) ? kCudnnSlack : 0;
}
inline int64_t attention_backward_workspace(const Target& t, const Attention& a, DType plain) {
  return attention_backward_parts(t, a, plain).total();
}

}  // namespace octet::BACKEND
