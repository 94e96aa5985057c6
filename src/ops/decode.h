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

// o[b] = softmax(scale * q k^T) v per head over the positions 0 .. p, p = start[b] + first, of which a window > 0
// leaves the last `window`. The query heads of a group read each key and value once.
//                             Dao et al. 2023 (Flash-Decoding): long sequences are cut in parts that are joined at the
//                             end
struct DecodeAttention {
  KvRows kv;
  Heads heads;
  Tensor start /*(B) i32*/;
  int64_t first = 0;
  int64_t longest = 1;  // start[b] + first + 1 at most: what the host knows of it
  int64_t window = 0;
  double scale = 1;
};
void attention_decode(Stream&, Tensor o /*(B,H*D)*/, Tensor qkv /*(B,width)*/, const DecodeAttention&,
                      Tensor workspace /*bytes: workspace.h*/);

// index[n] = that of the largest of x[n, 0 .. vocabulary), of equal ones the lowest
void argmax(Stream&, Tensor index /*(N) i32*/, Tensor x /*(N,V) wide*/, int64_t vocabulary);

}  // namespace octet::BACKEND
