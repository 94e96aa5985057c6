#include "nn/gelu_mlp.h"

namespace octet::BACKEND {

void GeluMlp::forward(Context& c, Tensor y, const Operand& x, Tensor residual) {
  Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
  u_ = memory.alloc(c.plain(), {y.rows(), up_.out()});
  up_.forward(c, u_, x);
  const Operand h = down_.input(c, y.rows());
  c.produce(h, [&](Operand o) { gelu_forward(c.stream, o, u_, kind_); });
  down_.forward(c, y, h, residual);
}

Tensor GeluMlp::backward(Context& c, Tensor dy) {
  const Tensor dx = c.scratch.alloc(c.plain(), {dy.rows(), up_.in()});
  const Arena::Scope scope(c.scratch);
  const Tensor dh = c.scratch.alloc(c.plain(), {dy.rows(), down_.in()});
  {
    const Arena::Scope products(c.scratch);
    down_.backward(c, dh, down_.output_grad(c, dy));
  }
  const Operand du = up_.output_grad(c, dy.rows());
  c.produce(du, [&](Operand o) { gelu_backward(c.stream, o, dh, u_, kind_); });
  up_.backward(c, dx, du);
  return dx;
}

}  // namespace octet::BACKEND
