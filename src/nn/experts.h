#pragma once
// ExpertLinear: y = x W_e^T for the rows of each expert e of a layer that this rank holds. All experts share one FP8
// scale for activations and one for gradients; each has its own for its weights. Only the device knows where an
// expert's rows begin, so everything here works on the whole buffer, whose unused rows are zero (ops/grouped.h). With
// fp8.moe_per_expert_scales, activations and gradients have a scale for each expert; then the host knows the offsets
// too, and casts expert by expert.
//
// Dimension key:  E experts   R rows of a buffer of experts' rows (ops/moe.h)   I in   O out
#include "nn/linear.h"
#include "ops/grouped.h"

namespace octet::BACKEND {

struct ExpertBuffer : ExpertRows {  // rows sorted by expert
  std::vector<int64_t> first{};     // the offsets, if the host knows them
};

class ExpertLinear {
 public:
  struct Options {
    int64_t layer = 0;  // of the model, for the recipe
    double std = 0.02;  // of the initial weights
  };
  // parts[e]: the matrices of expert e, stacked along the output dimension; of all experts, those of other ranks too.
  ExpertLinear(Builder, const std::vector<std::vector<ParameterStore::Part>>& parts, const Options&);

  Operand input(Context&, int64_t R) const;  // operands of R rows, for their producers to fill
  Operand output_grad(Context&, int64_t R) const;
  Operand reopened(Context&, Operand x) const;  // in backward: x with memory for its forms that were in scratch
  // Runs kernel(y, first row, rows): once over the whole buffer or, with a scale for each expert, once for each expert.
  template <class F>
  void produce(Context& c, const Operand& y, const ExpertBuffer& rows, F&& kernel) const {
    if (!casts_per_expert(y)) return c.produce(y, [&](const Operand& o) { kernel(o, int64_t{0}, y.rows()); });
    for (size_t e = 0; e < w_.size(); ++e)
      if (const int64_t first = rows.first[e], count = rows.first[e + 1] - first; count)
        c.produce(codes(y, e, first, count), [&](const Operand& o) { kernel(o, first, count); });
    if (y.q_t) transpose(c.stream, y.q_t, y.q);
  }
  void complete(Context&, const Operand&, const ExpertBuffer&) const;  // fills the FP8 forms from the plain one

  void forward(Context&, Tensor y /*(R,O)*/, const Operand& x /*(R,I)*/, const ExpertBuffer&);
  void backward(Context&, Tensor dx /*(R,I)*/, const Operand& dy /*(R,O)*/, const ExpertBuffer&);
  int64_t in() const { return w_[0].shape[1]; }
  int64_t out() const { return w_[0].shape[0]; }

 private:
  Forms input_forms(const Context&) const;
  Forms castable(Forms f) const { return per_expert_ ? Forms{f.plain, f.q || f.q_t, f.q_t} : f; }
  bool casts_per_expert(const Operand& y) const { return per_expert_ && y.q; }
  Operand codes(const Operand&, size_t e, int64_t first, int64_t count) const;  // the rows of an expert, with its scale
  int64_t scales() const { return per_expert_ ? int64_t(w_.size()) : 1; }
  int64_t scale_step() const { return per_expert_ ? 4 : 0; }
  LinearRecipe recipe_;
  std::vector<Param> w_;            // of the experts of this rank
  bool per_expert_ = false;         // x and dy have a scale for each expert
  int x_slot_ = -1, dy_slot_ = -1;  // the slot of this rank's first expert, or of all experts
  Operand x_;                       // of the last forward pass
};

}  // namespace octet::BACKEND
