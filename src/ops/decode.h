#pragma once
// Operations of generation with a KV cache: the pass of a prompt appends its keys and values, then each pass (a "step")
// takes one token a sequence. Conventions are those of ops/ops.h.
// Dimension key:  B sequences   T tokens of a pass   N rows (= B*T)   S positions of the cache   H query heads
//                 G key/value heads   D head size   V vocabulary
#include "ops/ops.h"

namespace octet::BACKEND {

struct KvRows {  // the cache of one layer; row p of (b, g) belongs to position p
  Tensor k /*(B,G,S,D)*/, v /*(B,G,S,D)*/;
};
// k[b,g,p], v[b,g,p] = k and v of row b*T + t of qkv, p = t + first [+ start[b]]
struct KvAppend {
  KvRows kv;
  Heads heads;
  int64_t T = 1, first = 0;
  Tensor start{};  // (B) i32, or none
};
void kv_append(Stream&, const KvAppend&, Tensor qkv /*(N,width)*/);

// o[b] = softmax(scale * q k^T) v for every head over the positions 0 .. position[b]; with a window > 0, over the last
// `window` of them. The query heads of a group share each read of a key and value; long sequences are split into parts
// whose results are combined at the end (split-KV).                                    Dao et al. 2023 (Flash-Decoding)
struct DecodeAttention {
  KvRows kv;
  Heads heads;
  Tensor position /*(B) i32*/;
  int64_t window = 0;
  double scale = 1;
  bool cache_ready = false;  // attention_step: position and kv are complete, as GemmArgs::b_ready says of b
  Tensor workspace{} /*bytes: workspace.h*/;  // zeroed by the caller before its first use; the op keeps counters there
};
void attention_decode(Stream&, Tensor o /*(B,H*D)*/, Tensor qkv /*(B,width)*/, const DecodeAttention&);
// rope_forward, kv_append and attention_decode of one token a sequence, at `position`, in one operation. Whether qkv is
// left rotated or as it was is unspecified.
void attention_step(Stream&, Tensor o /*(B,H*D)*/, Tensor qkv /*(B,width)*/, Tensor rope_table /*ops.h, Rope*/,
                    const DecodeAttention&);
// A matrix product fused with the norm before it and the activation after it:  y = rmsnorm(x) w^T,  or, gated, with
// w = [w_g; w_u],  y = silu(rmsnorm(x) w_g^T) * (rmsnorm(x) w_u^T).  norm and w must be complete: GemmArgs::b_ready.
struct NormedProduct {
  Tensor y /*(N,O); gated: (N,O/2)*/, x /*(N,C)*/, norm /*(C)*/, w /*(O,C)*/;
  double eps = 1e-5;
  bool gated = false;
  Tensor normed /*(N,C)*/, rstd /*(N) wide*/, product /*(N,O), where gated*/;  // scratch
};
void normed_product(Stream&, const NormedProduct&);
inline void normed_product_unfused(Stream& s, const NormedProduct& a) {  // the same, unfused
  rmsnorm_forward(s, {.plain = a.normed}, a.rstd, a.x, a.norm, a.eps);
  gemm(s, {.d = a.gated ? a.product : a.y, .a = {a.normed}, .b = {a.w}, .b_ready = true});
  if (a.gated) swiglu_forward(s, {.plain = a.y}, a.product);
}
void advance(Stream&, Tensor position /*(B) i32 +=*/);  // by one

// index[n] = argmax of x[n, 0 .. vocabulary), of equal values the lowest index; largest[n] = that value. Where one of
// the values is NaN, so is the largest, and the index is any below vocabulary.
void argmax(Stream&, Tensor index /*(N) i32*/, Tensor largest /*(N) wide*/, Tensor x /*(N,V) wide*/,
            int64_t vocabulary);

}  // namespace octet::BACKEND
