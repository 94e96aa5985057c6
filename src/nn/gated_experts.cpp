#include "nn/gated_experts.h"

namespace octet::BACKEND {
namespace {

using Parts = std::vector<std::vector<ParameterStore::Part>>;
// Each expert's w1 (gate) and w3 (up) are stacked into one matrix; w2 is the down projection.
Parts gate_up_parts(const MoeOptions& o) {
  Parts parts;
  for (int64_t e = 0; e < o.experts; ++e) {
    const std::string expert = concat(o.name, ".experts.", e);
    parts.push_back({{expert + ".w1.weight", {o.width, o.channels}}, {expert + ".w3.weight", {o.width, o.channels}}});
  }
  return parts;
}
Parts down_parts(const MoeOptions& o) {
  Parts parts;
  for (int64_t e = 0; e < o.experts; ++e)
    parts.push_back({{concat(o.name, ".experts.", e, ".w2.weight"), {o.channels, o.width}}});
  return parts;
}

Operand of_pass(Operand x, const Context& c) {  // recomputation does not measure a second time
  if (c.pass != Pass::train) x.slot.amax = nullptr;
  return x;
}

}  // namespace

GatedExperts::GatedExperts(Builder b, const MoeOptions& o)
    : gate_up_(b, gate_up_parts(o), {.layer = o.layer, .std = o.std}),
      down_(b, down_parts(o), {.layer = o.layer, .std = o.residual_std}) {}

void GatedExperts::open(Context& c, int64_t R) {
  Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
  gu_ = memory.alloc(c.plain(), {R, gate_up_.out()});
  x_ = gate_up_.input(c, R);
  if (!x_.plain) x_.plain = c.scratch.alloc(c.plain(), {R, gate_up_.in()});
  h_ = down_.input(c, R);
}

// The plan engine does not see this allocation, but it is smaller than what backward() allocates in its place.
void GatedExperts::reopen(Context& c) {
  x_ = gate_up_.reopened(c, x_);
  h_ = down_.reopened(c, h_);
}

void GatedExperts::forward(Context& c, Tensor o, const ExpertBuffer& rows, const Fill& x) {
  const Operand xe = of_pass(x_, c), h = of_pass(h_, c);
  x(xe.plain);
  gate_up_.complete(c, xe, rows);
  gate_up_.forward(c, gu_, xe, rows);
  down_.produce(c, h, rows, [&](const Operand& y, int64_t first, int64_t count) {
    swiglu_forward(c.stream, y, gu_.row_range(first, count));
  });
  down_.forward(c, o, h, rows);
}

void GatedExperts::backward(Context& c, Tensor dx, const ExpertBuffer& rows, const Fill& d_o) {
  const int64_t R = dx.rows();
  const Arena::Scope scope(c.scratch);
  const Tensor dh = c.scratch.alloc(c.plain(), {R, down_.in()});
  {
    const Arena::Scope products(c.scratch);
    Operand d = down_.output_grad(c, R);
    if (!d.plain) d.plain = c.scratch.alloc(c.plain(), {R, down_.out()});
    d_o(d.plain);
    down_.complete(c, d, rows);
    down_.backward(c, dh, d, rows);
  }
  const Operand dgu = gate_up_.output_grad(c, R);
  gate_up_.produce(c, dgu, rows, [&](const Operand& y, int64_t first, int64_t count) {
    swiglu_backward(c.stream, y, dh.row_range(first, count), gu_.row_range(first, count));
  });
  gate_up_.backward(c, dx, dgu, rows);
}

}  // namespace octet::BACKEND
