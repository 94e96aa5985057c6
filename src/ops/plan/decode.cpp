// Work of generation: every step counts the keys and values of all positions of the cache, as the last one reads them.
#include "ops/decode.h"

#include <algorithm>

#include "ops/plan/bytes.h"

namespace octet::BACKEND {

void kv_append(Stream& s, const KvAppend& a, Tensor qkv) {
  const double rows = double(qkv.rows() * 2 * a.heads.G * a.heads.D);
  count(s, Kernel::copy, 0, 2 * rows * double(size_of(qkv.dtype)));
}
void attention_decode(Stream& s, Tensor o, Tensor qkv, const DecodeAttention& a) {
  const int64_t S = a.kv.k.shape[2];
  const double keys = double(a.window > 0 ? std::min(a.window, S) : S), B = double(o.rows());
  const double row = double(a.heads.D) * keys * B;
  count(s, Kernel::attention_forward, 4 * row * double(a.heads.H),
        bytes(o, qkv) + 2 * row * double(a.heads.G) * double(size_of(qkv.dtype)));
}
void attention_step(Stream& s, Tensor o, Tensor qkv, Tensor rope_table, const DecodeAttention& a) {
  rope_forward(s, qkv, {.table = rope_table, .heads = a.heads, .start = a.position});
  kv_append(s, {.kv = a.kv, .heads = a.heads, .start = a.position}, qkv);
  attention_decode(s, o, qkv, a);
}
void normed_product(Stream& s, const NormedProduct& a) { normed_product_unfused(s, a); }

void advance(Stream& s, Tensor position) { count(s, Kernel::elementwise, 0, 2 * bytes(position)); }
void argmax(Stream& s, Tensor index, Tensor largest, Tensor x, int64_t) {
  count(s, Kernel::loss, 0, bytes(index, largest, x));
}

}  // namespace octet::BACKEND
