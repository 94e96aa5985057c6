#pragma once
// Sizes of the workspaces that ops take, as functions of the target and the shapes: one rule for every engine, so that the
// plan is exact to the byte.
#include "ops/ops.h"

namespace octet::BACKEND {

// Rows P of the `partial` buffers of two-stage column sums, and elements of sum_of_squares' partial.
inline int64_t partial_rows(const Target& t) { return t.cuda ? 2 * t.multiprocessors : 16; }
inline int64_t partial_sums(const Target& t) { return t.cuda ? 4 * t.multiprocessors : 64; }

// Bytes of the attention workspaces, forward and backward.
//   native: delta (B,H,T) f32; and where dq is accumulated by atomics (not deterministic) or in fp32, dq (N,H*D) f32
//   cuDNN:  delta, dq in f32, and its own, found by building the plans (deterministic: B*H*T*T*2)
int64_t attention_forward_workspace(const Target&, const Attention&, DType plain);
int64_t attention_backward_workspace(const Target&, const Attention&, DType plain);

}  // namespace octet::BACKEND
