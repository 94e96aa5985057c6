#pragma once
// The two implementations behind attention_forward and attention_backward on the gpu: our own kernels and cuDNN's.
#include "ops/ops.h"

namespace octet::BACKEND {

struct AttentionForward {
  Tensor o /*(N,H*D)*/, lse /*(B,H,T) f32*/, qkv /*(N,width)*/, workspace;
};

// f32 or bf16, every head size that is a multiple of 8 up to 256. Deterministic.
void native_attention_forward(Stream&, const AttentionForward&, const Attention&);
void native_attention_backward(Stream&, const AttentionBackward&, const Attention&);

// bf16, no window, no documents. cudnn_has_...: builds and keeps the plan of this shape; false if cuDNN has none for
// it, or if this is a build without cuDNN.
bool cudnn_has_forward(Device&, const Attention&);
bool cudnn_has_backward(Device&, const Attention&);
void cudnn_attention_forward(Stream&, const AttentionForward&, const Attention&);
void cudnn_attention_backward(Stream&, const AttentionBackward&, const Attention&);

}  // namespace octet::BACKEND
