// Generation as counts: at every step the keys and values of the longest sequence, for all of them.
#include "ops/decode.h"

#include <algorithm>

#include "ops/plan/bytes.h"

namespace octet::BACKEND {

void kv_append(Stream& s, const KvAppend& a, Tensor qkv) {
  const double rows = double(qkv.rows() * 2 * a.heads.G * a.heads.D);
  count(s, Kernel::copy, 0, 2 * rows * double(size_of(qkv.dtype)));
}
void attention_decode(Stream& s, Tensor o, Tensor qkv, const DecodeAttention& a, Tensor) {
  const double keys = double(a.window > 0 ? std::min(a.window, a.longest) : a.longest), B = double(o.rows());
  const double row = double(a.heads.D) * keys * B;
  count(s, Kernel::attention_forward, 4 * row * double(a.heads.H),
        bytes(o, qkv) + 2 * row * double(a.heads.G) * double(size_of(qkv.dtype)));
}
void argmax(Stream& s, Tensor index, Tensor x, int64_t) { count(s, Kernel::loss, 0, bytes(index, x)); }

}  // namespace octet::BACKEND
