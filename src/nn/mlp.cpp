#include "nn/mlp.h"

namespace octet::BACKEND {

void GatedMlp::forward(Context& c, Tensor y, const Operand& x, Tensor residual) {
  Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
  gu_ = memory.alloc(c.plain(), {y.rows(), gate_up_.out()});
  gate_up_.forward(c, gu_, x);
  const Operand h = down_.input(c, y.rows());
  c.produce(h, [&](Operand o) { swiglu_forward(c.stream, o, gu_); });
  down_.forward(c, y, h, residual);
}

void GatedMlp::step(Context& c, Tensor y, const Norm& norm, Tensor x, Tensor residual) {
  const Tensor h = c.scratch.alloc(x.dtype, {x.rows(), down_.in()});
  gate_up_.step(c, h, norm, x, Linear::Epilogue::swiglu);
  down_.forward(c, y, down_.input(c, h), residual);
}

Tensor GatedMlp::backward(Context& c, Tensor dy) {
  const Tensor dx = c.scratch.alloc(c.plain(), {dy.rows(), gate_up_.in()});
  const Arena::Scope scope(c.scratch);
  const Tensor dh = c.scratch.alloc(c.plain(), {dy.rows(), down_.in()});
  {
    const Arena::Scope products(c.scratch);
    down_.backward(c, dh, down_.output_grad(c, dy));
  }
  const Operand dgu = gate_up_.output_grad(c, dy.rows());
  c.produce(dgu, [&](Operand o) { swiglu_backward(c.stream, o, dh, gu_); });
  gate_up_.backward(c, dx, dgu);
  return dx;
}

}  // namespace octet::BACKEND
