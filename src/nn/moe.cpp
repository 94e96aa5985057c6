#include "nn/moe.h"

#include "base/rng.h"

namespace octet::BACKEND {
namespace {
// The experts are a unit of their own: their process groups may differ (expert parallelism), and they
// are the bulk of a block.
GatedExperts make_experts(Builder b, const Moe::Options& o) {
  const int dense = b.params.unit();
  b.params.begin_unit(concat("experts of block ", o.layer), Buffers::rotating_experts,
                      b.experts.group ? &b.experts.process_groups : nullptr);
  GatedExperts experts(b, o);
  b.params.resume_unit(dense);
  return experts;
}
}  // namespace

Moe::Moe(Builder b, const Options& o)
    : options_(o),
      router_(b.params.add({{o.name + ".gate.weight", {o.experts, o.channels}}}, {.std = o.std})),
      experts_(make_experts(b, o)),
      dispatch_(b.experts.group ? std::make_unique<ExpertDispatch>(b.experts, o.experts, o.per_token) : nullptr),
      host_needs_offsets_(b.recipe.per_expert_scales),
      pinned_(pinned_array<int32_t>(o.experts + 1)) {}

Operand Moe::input(Context& c, int64_t rows) const {
  Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
  return {.plain = memory.alloc(c.plain(), {rows, options_.channels})};
}

void Moe::route(Context& c, Tensor x) {
  const int64_t N = x.rows(), E = options_.experts, K = options_.per_token;
  const DType real = wide(c.plain());
  Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
  route_ = {.expert = memory.alloc(DType::i32, {N, K}),
            .weight = memory.alloc(real, {N, K}),
            .probability = memory.alloc(real, {N, E}),
            .lse = memory.alloc(real, {N})};
  rows_ = {.offset = memory.alloc(DType::i32, {E + 1}),
           .count = memory.alloc(DType::i32, {E}),
           .row = memory.alloc(DType::i32, {N, K}),
           .source = memory.alloc(DType::i32, {buffer_rows(N)})};
  const Arena::Scope scope(c.scratch);
  const Tensor logits = c.scratch.alloc(real, {N, E});
  gemm(c.stream, {.d = logits,
                  .a = Operand{.plain = x}.by_cols(Precision::plain),
                  .b = c.params.value(router_).by_cols(Precision::plain),
                  .b_ready = c.decodes()});
  if (c.routers.observe) c.routers.observe(options_.layer, logits);
  const Tensor choice = c.routers.choice ? c.routers.choice.part(options_.layer * N * E, {N, E}) : logits;
  moe_route(c.stream, route_, logits, choice);
  moe_sort(c.stream, rows_, route_.expert);
  if (c.pass == Pass::train && c.routers.sums)
    moe_add_sums(c.stream, c.routers.sums.part(options_.layer * 3 * E, {3, E}), rows_.count, route_);
  if (dispatch_) dispatch_->start(c, rows_.offset, N);
  else used_ = {{.offset = rows_.offset, .assignments = N * K}, {}};
  if (!dispatch_ && host_needs_offsets_) used_.first = moe_offsets(c.stream, pinned_.get(), rows_.offset, N * K);
}

// As in transformers, the experts read the jittered input too. Recomputation and backward draw the same noise again.
void Moe::jitter(Context& c, Tensor x) const {
  if (options_.jitter > 0 && c.pass != Pass::evaluate)
    moe_jitter(c.stream, x, x, options_.jitter, mix(c.routers.seed + uint64_t(options_.layer)));
}

void Moe::forward(Context& c, Tensor y, const Operand& x, Tensor residual) {
  const int64_t N = y.rows(), R = buffer_rows(N);
  x_ = x.plain;
  jitter(c, x_);
  route(c, x_);
  Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
  o_ = memory.alloc(c.plain(), {R, options_.channels});
  const auto gather = [&](Tensor rows) { moe_gather(c.stream, rows, x_, rows_.source, options_.per_token); };
  if (dispatch_) {
    const Tensor mine = c.scratch.alloc(c.plain(), o_.shape);
    gather(mine);
    dispatch_->finish(c);
    experts_.open(c, dispatch_->buffer_rows(N));
    dispatch_->forward(c, experts_, o_, mine);
  } else {
    experts_.open(c, R);
    experts_.forward(c, o_, used_, gather);
  }
  moe_combine(c.stream, y, o_, rows_.row, route_.weight, residual);
}

Tensor Moe::backward(Context& c, Tensor dy) {
  const int64_t N = dy.rows(), R = buffer_rows(N);
  const Tensor dx = c.scratch.alloc(c.plain(), {N, options_.channels});
  const Arena::Scope scope(c.scratch);
  const Tensor dweight = c.scratch.alloc(wide(c.plain()), {N, options_.per_token});
  const Tensor dxe = c.scratch.alloc(c.plain(), {R, options_.channels});
  const auto combine_backward = [&](Tensor d_o) {
    moe_combine_backward(
        c.stream, {.d_o = d_o, .dweight = dweight, .dy = dy, .o = o_, .weight = route_.weight, .source = rows_.source});
  };
  if (dispatch_) {
    const Arena::Scope inside(c.scratch);
    const Tensor d_o = c.scratch.alloc(c.plain(), dxe.shape);
    combine_backward(d_o);
    if (dispatch_->several_rounds()) moe_gather(c.stream, dxe, x_, rows_.source, options_.per_token);
    dispatch_->backward(c, experts_, dxe, d_o);
  } else {
    experts_.backward(c, dxe, used_, combine_backward);
  }
  moe_combine(c.stream, dx, dxe, rows_.row, {}, {});
  route_backward(c, dx, dweight);
  jitter(c, dx);
  return dx;
}

void Moe::route_backward(Context& c, Tensor dx, Tensor dweight) {
  const Operand d{.plain = c.scratch.alloc(c.plain(), {dx.rows(), options_.experts})};
  const Routers& r = c.routers;
  const int64_t own = r.by_layer ? options_.layer * 3 * options_.experts : 0;
  const Tensor statistics = r.by_layer ? r.sums : r.total,
               count = statistics ? statistics.part(own, {options_.experts}) : Tensor{};
  moe_route_backward(c.stream, {.dlogits = d.plain,
                                .route = route_,
                                .dweight = dweight,
                                .count = count,
                                .balance = c.routers.balance,
                                .z = c.routers.z,
                                .loss_scale = c.routers.loss_scale});
  const ParameterStore::Sum dw = c.params.sum(router_);
  gemm(c.stream, {.d = dw.d,
                  .a = d.by_rows(Precision::plain),
                  .b = Operand{.plain = x_}.by_rows(Precision::plain),
                  .accumulate = true,
                  .first_term = dw.first_term});
  gemm(c.stream, {.d = dx,
                  .a = d.by_cols(Precision::plain),
                  .b = c.params.value(router_).by_rows(Precision::plain),
                  .accumulate = true});
}

}  // namespace octet::BACKEND
