#include "nn/experts.h"

namespace octet::BACKEND {
namespace {

// f(e, x of that expert) for each expert that has rows: an expert without rows has no products and no gradient.
template <class F>
void for_each_expert(const ExpertOffsets& first, F&& f) {
  for (size_t e = 0; e + 1 < first.size(); ++e)
    if (first[e + 1] > first[e]) f(e, first[e], first[e + 1] - first[e]);
}
Operand part(const Operand& x, int64_t first, int64_t rows) {
  Operand p{.scale_inv = x.scale_inv, .slot = x.slot};
  if (x.plain) p.plain = x.plain.row_range(first, rows);
  if (x.q) p.q = x.q.row_range(first, rows);
  if (x.q_t) p.q_t = x.q_t.part(first * x.q_t.rows(), {x.q_t.rows(), rows});
  return p;
}
Forms transposable(Forms f) { return {f.plain, f.q || f.q_t, f.q_t}; }  // codes are transposed expert by expert

}  // namespace

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
  if (c.pass != Pass::evaluate) return transposable(recipe_.x());
  return {.plain = recipe_.fprop == Precision::plain, .q = recipe_.fprop == Precision::fp8};
}
Operand ExpertLinear::output_grad(Context& c, int64_t R) const {
  return c.operand({&c.scratch, &c.scratch, &c.scratch}, {R, out()}, transposable(recipe_.dy()), dy_slot_);
}

void ExpertLinear::finish(Context& c, const Operand& x, const ExpertOffsets& first) const {
  if (!x.q_t) return;
  for_each_expert(first, [&](size_t, int64_t begin, int64_t rows) {
    const Operand p = part(x, begin, rows);
    transpose(c.stream, p.q_t, p.q);
  });
}
void ExpertLinear::finish_plain(Context& c, const Operand& x, const ExpertOffsets& first) const {
  complete(c, used(x, first), used(x.plain, first));
  finish(c, x, first);
}

void ExpertLinear::forward(Context& c, Tensor y, const Operand& x, const ExpertOffsets& first) {
  const Precision p = c.evaluates_plain() ? Precision::plain : recipe_.fprop;
  x_ = x;
  for_each_expert(first, [&](size_t e, int64_t begin, int64_t rows) {
    gemm(c.stream, {.d = y.row_range(begin, rows),
                    .a = part(x, begin, rows).by_cols(p),
                    .b = c.params.value(w_[e]).by_cols(p),
                    .fast = recipe_.fast_fprop});
  });
}

void ExpertLinear::backward(Context& c, Tensor dx, const Operand& dy, const ExpertOffsets& first) {
  for_each_expert(first, [&](size_t e, int64_t begin, int64_t rows) {
    const Operand d = part(dy, begin, rows);
    gemm(c.stream, {.d = dx.row_range(begin, rows),
                    .a = d.by_cols(recipe_.dgrad),
                    .b = c.params.value(w_[e]).by_rows(recipe_.dgrad),
                    .fast = recipe_.fast_dgrad});
    gemm(c.stream, {.d = c.params.grad(w_[e]),
                    .a = d.by_rows(recipe_.wgrad),
                    .b = part(x_, begin, rows).by_rows(recipe_.wgrad),
                    .accumulate = true,
                    .fast = recipe_.fast_wgrad});
  });
}

}  // namespace octet::BACKEND
