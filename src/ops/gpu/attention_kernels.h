#pragma once
// Our attention kernels, by storage type and architecture.
#include "ops/gpu/attention.h"

namespace octet::BACKEND {

void attention_forward_bf16(Stream&, const AttentionForward&, const Attention&);
void attention_forward_hopper(Stream&, const AttentionForward&, const Attention&);  // of head sizes 64 and 128
// The backward pass: first dq, which also writes delta = rowsum(do * o) to the workspace; then dk and dv, which read
// it.
void attention_backward_q_bf16(Stream&, const AttentionBackward&, const Attention&);
void attention_backward_kv_bf16(Stream&, const AttentionBackward&, const Attention&);
void attention_backward_q_hopper(Stream&, const AttentionBackward&, const Attention&);  // of head sizes 64 and 128
void attention_backward_kv_hopper(Stream&, const AttentionBackward&, const Attention&);

void attention_forward_f32(Stream&, const AttentionForward&, const Attention&);
void attention_backward_f32(Stream&, const AttentionBackward&, const Attention&);

}  // namespace octet::BACKEND
