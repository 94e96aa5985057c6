#include "nn/experts.h"

namespace octet::BACKEND {

ExpertLinear::ExpertLinear(Builder b, const std::vector<std::vector<ParameterStore::Part>>& parts,
                           const Options& options) {
  Shape shape = parts[0][0].shape;
  shape.dim[0] *= int64_t(parts[0].size());
  std::vector<std::string> names;
  for (const auto& expert : parts)
    for (const ParameterStore::Part& part : expert) names.push_back(part.name);
  recipe_ = b.recipe.linear(names, options.layer, shape);
  for (const auto& expert : parts) w_.push_back(b.params.add(expert, {.std = options.std}, recipe_.w()));
  if (!recipe_.fp8()) return;
  x_slot_ = b.scaling.add(names[0] + ".x", DType::e4m3);
  dy_slot_ = b.scaling.add(names[0] + ".dy", b.recipe.gradient_format);
}

// Saved as in Linear: what wgrad reads.
Operand ExpertLinear::input(Context& c, int64_t R) const {
  if (c.evaluates_plain()) return c.operand({&c.scratch, &c.scratch, &c.scratch}, {R, in()}, {.plain = true}, -1);
  Arena* plain = recipe_.wgrad == Precision::plain ? &c.saved : &c.scratch;
  return c.operand({plain, &c.scratch, &c.saved}, {R, in()}, input_forms(c), x_slot_);
}
Forms ExpertLinear::input_forms(const Context& c) const {
  if (c.pass != Pass::evaluate) return recipe_.x();
  return {.plain = recipe_.fprop == Precision::plain, .q = recipe_.fprop == Precision::fp8};
}
Operand ExpertLinear::output_grad(Context& c, int64_t R) const {
  return c.operand({&c.scratch, &c.scratch, &c.scratch}, {R, out()}, recipe_.dy(), dy_slot_);
}

void ExpertLinear::forward(Context& c, Tensor y, const Operand& x, const ExpertRows& rows) {
  const Precision p = c.evaluates_plain() ? Precision::plain : recipe_.fprop;
  x_ = x;
  std::vector<Factor> w;
  for (const Param& e : w_) w.push_back(c.params.value(e).by_cols(p));
  grouped_gemm(c.stream, {.d = y, .a = x.by_cols(p), .b = w, .rows = rows, .fast = recipe_.fast_fprop});
}

void ExpertLinear::backward(Context& c, Tensor dx, const Operand& dy, const ExpertRows& rows) {
  std::vector<Factor> w;
  std::vector<Tensor> dw;
  for (const Param& e : w_) {
    w.push_back(c.params.value(e).by_rows(recipe_.dgrad));
    dw.push_back(c.params.grad(e));
  }
  grouped_gemm(c.stream, {.d = dx, .a = dy.by_cols(recipe_.dgrad), .b = w, .rows = rows, .fast = recipe_.fast_dgrad});
  grouped_gradient(c.stream, {.d = dw,
                              .a = dy.by_rows(recipe_.wgrad),
                              .b = x_.by_rows(recipe_.wgrad),
                              .rows = rows,
                              .fast = recipe_.fast_wgrad});
}

}  // namespace octet::BACKEND
