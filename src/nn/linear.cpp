#include "nn/linear.h"

#include <utility>

#include "ops/workspace.h"

namespace octet::BACKEND {

Linear::Linear(Builder b, const std::vector<ParameterStore::Part>& parts, const Options& options) {
  Shape shape = parts[0].shape;
  shape.dim[0] = 0;
  std::vector<std::string> names;
  for (const ParameterStore::Part& part : parts) {
    shape.dim[0] += part.shape[0];
    names.push_back(part.name);
  }
  recipe_ = b.recipe.linear(names, options.layer, shape);
  w_ = b.params.add(parts, {.std = options.std}, recipe_.w());
  if (!options.bias.empty()) b_ = b.params.add({{options.bias, {shape[0]}}}, {});
  const auto slot = [&](Forms forms, const char* what, DType format) {
    return forms.q || forms.q_t ? b.scaling.add(parts[0].name + what, format) : -1;
  };
  x_slot_ = slot(recipe_.x(), ".x", DType::e4m3);
  dy_slot_ = slot(recipe_.dy(), ".dy", b.recipe.gradient_format);
}

// What wgrad reads is saved for the backward pass: the plain form, or the FP8 transpose. What only fprop
// reads ends with the block.
Operand Linear::input(Context& c, int64_t rows) const {
  if (c.evaluates_plain()) return c.operand({&c.scratch, &c.scratch, &c.scratch}, {rows, in()}, {.plain = true}, -1);
  Arena* plain = recipe_.wgrad == Precision::plain ? &c.saved : &c.scratch;
  return c.operand({plain, &c.scratch, &c.saved}, {rows, in()}, input_forms(c), x_slot_);
}
Operand Linear::input(Context& c, Tensor x) const {
  if (c.evaluates_plain()) return {.plain = x};
  Forms missing = input_forms(c);
  missing.plain = false;
  Operand y = c.operand({&c.scratch, &c.scratch, &c.saved}, {x.rows(), in()}, missing, x_slot_);
  complete(c, y, x);
  y.plain = x;
  return y;
}
Forms Linear::input_forms(const Context& c) const {
  if (c.pass != Pass::evaluate) return recipe_.x();
  return {.plain = recipe_.fprop == Precision::plain, .q = recipe_.fprop == Precision::fp8};
}
Forms Linear::output_grad_forms() const {
  Forms forms = recipe_.dy();
  forms.plain = forms.plain || b_.unit >= 0;  // the bias gradient sums the unrounded values
  return forms;
}
Operand Linear::output_grad(Context& c, int64_t rows) const {
  return c.operand({&c.scratch, &c.scratch, &c.scratch}, {rows, out()}, output_grad_forms(), dy_slot_);
}
Operand Linear::output_grad_in_place(Context& c, Tensor buffer) const {
  Forms forms = output_grad_forms();
  const bool plain = std::exchange(forms.plain, false);
  Operand y = c.operand({&c.scratch, &c.scratch, &c.scratch}, {buffer.rows(), out()}, forms, dy_slot_);
  if (plain) y.plain = buffer;
  return y;
}
Operand Linear::output_grad(Context& c, Tensor dy) const {
  Forms missing = recipe_.dy();
  missing.plain = false;
  Operand y = c.operand({&c.scratch, &c.scratch, &c.scratch}, {dy.rows(), out()}, missing, dy_slot_);
  complete(c, y, dy);
  y.plain = dy;
  return y;
}

void Linear::forward(Context& c, Tensor y, const Operand& x, Tensor residual) {
  const Precision p = c.evaluates_plain() ? Precision::plain : recipe_.fprop;
  x_ = x;
  gemm(c.stream, {.d = y,
                  .a = x.by_cols(p),
                  .b = c.params.value(w_).by_cols(p),
                  .residual = residual,
                  .bias = b_.unit >= 0 ? c.params.value(b_).plain : Tensor{},
                  .fast = recipe_.fast_fprop,
                  .b_ready = c.decodes()});
}

void Linear::step(Context& c, Tensor y, const Norm& norm, Tensor x, Epilogue epilogue) {
  CHECK(c.decodes() && c.evaluates_plain() && norm.options().kind == Norm::Kind::rms && b_.unit < 0,
        "a step takes plain weights, an RMSNorm and no bias");
  const Arena::Scope scope(c.scratch);
  const bool gated = epilogue == Epilogue::swiglu;
  const int64_t N = x.rows();
  normed_product(c.stream, {.y = y,
                            .x = x,
                            .norm = norm.weight(c),
                            .w = c.params.value(w_).by_cols(Precision::plain).t,
                            .eps = norm.options().eps,
                            .gated = gated,
                            .normed = c.scratch.alloc(x.dtype, x.shape),
                            .rstd = c.scratch.alloc(wide(x.dtype), {N}),
                            .product = gated ? c.scratch.alloc(x.dtype, {N, out()}) : Tensor{}});
}

void Linear::backward(Context& c, Tensor dx, const Operand& dy) {
  gemm(c.stream, {.d = dx,
                  .a = dy.by_cols(recipe_.dgrad),
                  .b = c.params.value(w_).by_rows(recipe_.dgrad),
                  .fast = recipe_.fast_dgrad});
  const ParameterStore::Sum dw = c.params.sum(w_);
  gemm(c.stream, {.d = dw.d,
                  .a = dy.by_rows(recipe_.wgrad),
                  .b = x_.by_rows(recipe_.wgrad),
                  .accumulate = true,
                  .first_term = dw.first_term,
                  .fast = recipe_.fast_wgrad});
  if (b_.unit < 0) return;
  const Arena::Scope scope(c.scratch);
  CHECK(dy.plain, "a bias gradient needs the plain form");
  column_sum(c.stream, c.params.grad(c.stream, b_), dy.plain,
             c.scratch.alloc(wide(c.plain()), {partial_rows(c.target()), out()}));
}

}  // namespace octet::BACKEND
