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
  const size_t ranks = b.experts.group ? size_t(b.experts.group->size()) : 1, held = parts.size() / ranks;
  const size_t first = b.experts.group ? size_t(b.experts.group->rank()) * held : 0;
  for (size_t e = 0; e < parts.size(); ++e) {
    if (e >= first && e < first + held) w_.push_back(b.params.add(parts[e], {.std = options.std}, recipe_.w()));
    else b.params.add_elsewhere(parts[e], recipe_.w());
  }
  if (!recipe_.fp8()) return;
  per_expert_ = b.recipe.per_expert_scales;
  const size_t slots = per_expert_ ? parts.size() : 1;
  const auto add = [&](Forms forms, const char* what,
                       DType format) {  // every rank has slots of all experts: checkpoints hold all
    if (!forms.q && !forms.q_t) return -1;
    const int begin = b.scaling.size();
    for (size_t e = 0; e < slots; ++e) b.scaling.add(parts[e][0].name + what, format);
    if (per_expert_) b.scaling.group_slots(begin, int(slots));
    return begin + int(per_expert_ ? first : 0);
  };
  x_slot_ = add(recipe_.x(), ".x", DType::e4m3);
  dy_slot_ = add(recipe_.dy(), ".dy", b.recipe.gradient_format);
}

Operand ExpertLinear::codes(const Operand& x, size_t e, int64_t first, int64_t count) const {
  Operand y{.q = x.q.row_range(first, count), .scale_inv = x.scale_inv, .slot = x.slot};
  if (x.plain) y.plain = x.plain.row_range(first, count);
  y.scale_inv += scale_step() * int64_t(e);  // slots are in the order of experts
  y.slot.scale += scale_step() * int64_t(e);
  if (y.slot.amax) y.slot.amax += e;
  return y;
}
void ExpertLinear::complete(Context& c, const Operand& x, const ExpertBuffer& rows) const {
  if (!casts_per_expert(x)) return BACKEND::complete(c, x, x.plain);
  Operand missing = x;
  missing.plain = {};
  produce(c, missing, rows, [&](const Operand& y, int64_t first, int64_t count) {
    quantize(c.stream, y, x.plain.row_range(first, count));
  });
}

// As in Linear, what wgrad reads is saved for the backward pass; the other forms end with the block.
Operand ExpertLinear::input(Context& c, int64_t R) const {
  if (c.evaluates_plain()) return c.operand({&c.scratch, &c.scratch, &c.scratch}, {R, in()}, {.plain = true}, -1);
  Arena* plain = recipe_.wgrad == Precision::plain ? &c.saved : &c.scratch;
  return c.operand({plain, &c.scratch, &c.saved}, {R, in()}, input_forms(c), x_slot_, scales());
}
Forms ExpertLinear::input_forms(const Context& c) const {
  if (c.pass != Pass::evaluate) return castable(recipe_.x());
  return {.plain = recipe_.fprop == Precision::plain, .q = recipe_.fprop == Precision::fp8};
}
Operand ExpertLinear::output_grad(Context& c, int64_t R) const {
  return c.operand({&c.scratch, &c.scratch, &c.scratch}, {R, out()}, castable(recipe_.dy()), dy_slot_, scales());
}
Operand ExpertLinear::reopened(Context& c, Operand x) const {
  if (x.q) x.q = c.scratch.alloc(x.q.dtype, x.q.shape);
  if (x.plain && recipe_.wgrad != Precision::plain) x.plain = c.scratch.alloc(x.plain.dtype, x.plain.shape);
  return x;
}

void ExpertLinear::forward(Context& c, Tensor y, const Operand& x, const ExpertBuffer& rows) {
  const Precision p = c.evaluates_plain() ? Precision::plain : recipe_.fprop;
  x_ = x;
  std::vector<Factor> w;
  for (const Param& e : w_) w.push_back(c.params.value(e).by_cols(p));
  grouped_gemm(
      c.stream,
      {.d = y, .a = x.by_cols(p), .b = w, .rows = rows, .scale_step = scale_step(), .fast = recipe_.fast_fprop});
}

void ExpertLinear::backward(Context& c, Tensor dx, const Operand& dy, const ExpertBuffer& rows) {
  std::vector<Factor> w;
  std::vector<Tensor> dw;
  bool first_term = false;
  for (const Param& e : w_) {
    w.push_back(c.params.value(e).by_rows(recipe_.dgrad));
    const ParameterStore::Sum sum = c.params.sum(e);
    dw.push_back(sum.d);
    first_term = sum.first_term;  // the same for all
  }
  grouped_gemm(c.stream, {.d = dx,
                          .a = dy.by_cols(recipe_.dgrad),
                          .b = w,
                          .rows = rows,
                          .scale_step = scale_step(),
                          .fast = recipe_.fast_dgrad});
  grouped_gradient(c.stream, {.d = dw,
                              .a = dy.by_rows(recipe_.wgrad),
                              .b = x_.by_rows(recipe_.wgrad),
                              .rows = rows,
                              .scale_step = scale_step(),
                              .fast = recipe_.fast_wgrad,
                              .first_term = first_term});
}

}  // namespace octet::BACKEND
