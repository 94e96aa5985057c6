#include "nn/context.h"

#include <cmath>

namespace octet::BACKEND {

Operand Context::operand(Placement at, Shape shape, Forms forms, int slot, int64_t scales) const {
  Operand y;
  if (forms.plain) y.plain = at.plain->alloc(plain(), shape);
  if (slot < 0 || !(forms.q || forms.q_t)) return y;
  y.slot = pass == Pass::train ? scaling.measured(slot) : scaling.unmeasured(slot);
  if (forms.q) y.q = at.q->alloc(y.slot.format, shape);
  if (forms.q_t) y.q_t = at.q_t->alloc(y.slot.format, {shape[1], shape[0]});
  y.scale_inv = at.q_t->alloc(DType::f32, {scales, 4}).ptr<float>();
  return y;
}

float Context::largest_of(DType format) const { return std::ldexp(largest(format), -scaling.options().margin); }

void complete(const Context& c, const Operand& y, Tensor plain) {
  if (!y.q && !y.q_t) return;
  Operand missing = y;
  missing.plain = {};
  c.produce(missing, [&](Operand o) { quantize(c.stream, o, plain); });
}

}  // namespace octet::BACKEND
