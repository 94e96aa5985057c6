#include "nn/norm.h"

#include "ops/workspace.h"

namespace octet::BACKEND {

Norm::Norm(Builder b, const std::string& name, const Options& options) : options_(options) {
  w_ = b.params.add({{name + ".weight", {options.channels}}}, {.mean = 1});
  if (options.kind == Kind::layer) b_ = b.params.add({{name + ".bias", {options.channels}}}, {});
}

void Norm::forward(Context& c, const Operand& y, Tensor x) {
  x_ = x;
  Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
  rstd_ = memory.alloc(wide(x.dtype), {x.rows()});
  const Tensor w = c.params.value(w_).plain;
  if (options_.kind == Kind::rms) {
    c.produce(y, [&](const Operand& o) { rmsnorm_forward(c.stream, o, rstd_, x, w, options_.eps); });
    return;
  }
  mean_ = memory.alloc(wide(x.dtype), {x.rows()});
  const Tensor b = c.params.value(b_).plain;
  c.produce(y, [&](const Operand& o) {
    layernorm_forward(c.stream, {.y = o, .mean = mean_, .rstd = rstd_, .x = x, .w = w, .b = b, .eps = options_.eps});
  });
}

void Norm::backward(Context& c, Tensor dx, Tensor dy) {
  const Arena::Scope scope(c.scratch);
  const Tensor w = c.params.value(w_).plain, dw = c.params.grad(c.stream, w_);
  const int64_t sums = options_.kind == Kind::layer ? 2 : 1;
  const Tensor partial = c.scratch.alloc(wide(dy.dtype), {sums * partial_rows(c.target()), dy.cols()});
  if (options_.kind == Kind::rms)
    rmsnorm_backward(c.stream, {.dx = dx, .dw = dw, .dy = dy, .x = x_, .w = w, .rstd = rstd_, .partial = partial});
  else
    layernorm_backward(c.stream, {.dx = dx,
                                  .dw = dw,
                                  .db = c.params.grad(c.stream, b_),
                                  .dy = dy,
                                  .x = x_,
                                  .w = w,
                                  .mean = mean_,
                                  .rstd = rstd_,
                                  .partial = partial});
}

}  // namespace octet::BACKEND
