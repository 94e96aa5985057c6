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

// Why a version of cuDNN (major * 10000 + minor * 100 + patch) would compute wrong gradients, or "". Before 9.6 it adds
// dq to memory that it expects to be zero, unless deterministic; before 9.16 it gives NaN where T is no multiple of a
// tile.                                         NVIDIA's cudnn-frontend clears that memory, and masks such a tile
inline std::string wrong_backward(size_t version, int64_t T, bool deterministic) {
  const auto since = [&](const char* needed, const char* why) {
    return concat("cuDNN ", version / 10000, ".", version / 100 % 100, " ", why, "; ", needed, " does not");
  };
  if (version < 90600 && !deterministic) return since("9.6", "sums dq in memory that it does not clear");
  if (version < 91600 && T % 128) return since("9.16", "errs where seq_len is no multiple of 128");
  return "";
}

// bf16, no window, no documents. cudnn_has_...: builds and keeps the plan of this shape; false if cuDNN has none for
// it, or if this is a build without cuDNN.
bool cudnn_has_forward(Device&, const Attention&);
bool cudnn_has_backward(Device&, const Attention&);
void cudnn_attention_forward(Stream&, const AttentionForward&, const Attention&);
void cudnn_attention_backward(Stream&, const AttentionBackward&, const Attention&);

}  // namespace octet::BACKEND
