#pragma once
// Operations of generation: the keys and values of earlier tokens are kept, and each sequence asks one query at a time.
// Conventions are those of ops/ops.h.
// Dimension key:  B sequences   T tokens of a pass   N rows (= B*T)   S positions that there is room for   H query
// heads G key/value heads   D head size   V vocabulary
#include "ops/ops.h"

namespace octet::BACKEND {

struct KvRows {  // of one layer; row p of (b, g) is that of position p
  Tensor k /*(B,G,S,D)*/, v /*(B,G,S,D)*/;
};
// k[b,g,p], v[b,g,p] = those of row b*T + t of qkv, p = t + first [+ start[b]]
struct KvAppend {
  KvRows kv;
  Heads heads;
  int64_t T = 1, first = 0;
  Tensor start{};  // (B) i32, or none
};
void kv_append(Stream&, const KvAppend&, Tensor qkv /*(N,width)*/);

// o[b] = softmax(scale * q k^T) v per head over the positions 0 .. position[b], of which a window > 0 leaves the last
// `window`. The query heads of a group read each key and value once.
//                             Dao et al. 2023 (Flash-Decoding): long sequences are cut in parts that are joined at the
//                             end
struct DecodeAttention {
  KvRows kv;
  Heads heads;
  Tensor position /*(B) i32*/;
  int64_t window = 0;
  double scale = 1;
  bool settled = false;  // of a step: position, and what it finds in kv, were written long ago (ops.h, GemmArgs)
  Tensor workspace{} /*bytes: workspace.h*/;  // zero before its first use, and then left alone between calls
};
void attention_decode(Stream&, Tensor o /*(B,H*D)*/, Tensor qkv /*(B,width)*/, const DecodeAttention&);
// rope_forward, kv_append and attention_decode of one token a sequence, at `position`. qkv may be turned, or not.
void attention_step(Stream&, Tensor o /*(B,H*D)*/, Tensor qkv /*(B,width)*/, Tensor rope_table /*ops.h, Rope*/,
                    const DecodeAttention&);
// A product with what stands around it:  y = rmsnorm(x) w^T,  or gated, w = [w_g; w_u]:
//   y = silu(rmsnorm(x) w_g^T) * (rmsnorm(x) w_u^T).  norm and w were written long ago (ops.h, GemmArgs::settled).
struct NormedProduct {
  Tensor y /*(N,O); gated: (N,O/2)*/, x /*(N,C)*/, norm /*(C)*/, w /*(O,C)*/;
  double eps = 1e-5;
  bool gated = false;
  Tensor normed /*(N,C)*/, rstd /*(N) wide*/, product /*(N,O), where gated*/;  // workspaces
};
void normed_product(Stream&, const NormedProduct&);
inline void normed_product_apart(Stream& s, const NormedProduct& a) {  // in as many operations
  rmsnorm_forward(s, {.plain = a.normed}, a.rstd, a.x, a.norm, a.eps);
  gemm(s, {.d = a.gated ? a.product : a.y, .a = {a.normed}, .b = {a.w}, .settled = true});
  if (a.gated) swiglu_forward(s, {.plain = a.y}, a.product);
}
void advance(Stream&, Tensor position /*(B) i32 +=*/);  // by one

// index[n] = that of the largest of x[n, 0 .. vocabulary), of equal ones the lowest
void argmax(Stream&, Tensor index /*(N) i32*/, Tensor x /*(N,V) wide*/, int64_t vocabulary);

}  // namespace octet::BACKEND
