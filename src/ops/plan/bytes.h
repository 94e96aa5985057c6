#pragma once
// Bytes that an operation reads and writes, for the counts of the plan engine.
#include "device/plan.h"
#include "ops/ops.h"

namespace octet::BACKEND {

inline double bytes_of(Tensor t) { return t ? double(t.bytes()) : 0; }
inline double bytes_of(const Operand& y) { return bytes_of(y.plain) + bytes_of(y.q) + bytes_of(y.q_t); }
template <class... Ts>
double bytes(const Ts&... parts) {  // of tensors and operands; what is read and written is named twice
  return (0. + ... + bytes_of(parts));
}

}  // namespace octet::BACKEND
