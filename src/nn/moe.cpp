#include "nn/moe.h"

#include "base/rng.h"

namespace octet::BACKEND {
namespace {

using Parts = std::vector<std::vector<ParameterStore::Part>>;
// Of each expert: w1, the gate, above w3, the up projection; and w2, down.
Parts gate_up_parts(const Moe::Options& o) {
  Parts parts;
  for (int64_t e = 0; e < o.experts; ++e) {
    const std::string expert = concat(o.name, ".experts.", e);
    parts.push_back({{expert + ".w1.weight", {o.width, o.channels}}, {expert + ".w3.weight", {o.width, o.channels}}});
  }
  return parts;
}
Parts down_parts(const Moe::Options& o) {
  Parts parts;
  for (int64_t e = 0; e < o.experts; ++e)
    parts.push_back({{concat(o.name, ".experts.", e, ".w2.weight"), {o.channels, o.width}}});
  return parts;
}

}  // namespace

Moe::Moe(Builder b, const Options& o)
    : options_(o),
      router_(b.params.add({{o.name + ".gate.weight", {o.experts, o.channels}}}, {.std = o.std})),
      gate_up_(b, gate_up_parts(o), {.layer = o.layer, .std = o.std}),
      down_(b, down_parts(o), {.layer = o.layer, .std = o.residual_std}) {}

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
                  .b = c.params.value(router_).by_cols(Precision::plain)});
  if (c.routers.observe) c.routers.observe(options_.layer, logits);
  const Tensor choice = c.routers.choice ? c.routers.choice.part(options_.layer * N * E, {N, E}) : logits;
  moe_route(c.stream, route_, logits, choice);
  moe_sort(c.stream, rows_, route_.expert);
  if (c.pass == Pass::train && c.routers.sums)
    moe_add_sums(c.stream, c.routers.sums.part(options_.layer * 3 * E, {3, E}), rows_.count, route_);
  used_ = {.offset = rows_.offset, .assignments = N * K};
}

// As transformers does it: what the experts read is shaken too. The same noise again in recomputation and in backward.
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
  gu_ = memory.alloc(c.plain(), {R, gate_up_.out()});
  o_ = memory.alloc(c.plain(), {R, down_.out()});
  Operand xe = gate_up_.input(c, R);
  if (!xe.plain) xe.plain = c.scratch.alloc(c.plain(), {R, gate_up_.in()});
  moe_gather(c.stream, xe.plain, x_, rows_.source, options_.per_token);
  complete(c, xe, xe.plain);
  gate_up_.forward(c, gu_, xe, used_);
  const Operand h = down_.input(c, R);
  c.produce(h, [&](Operand o) { swiglu_forward(c.stream, o, gu_); });
  down_.forward(c, o_, h, used_);
  moe_combine(c.stream, y, o_, rows_.row, route_.weight, residual);
}

Tensor Moe::backward(Context& c, Tensor dy) {
  const int64_t N = dy.rows(), R = buffer_rows(N);
  const Tensor dx = c.scratch.alloc(c.plain(), {N, options_.channels});
  const Arena::Scope scope(c.scratch);
  const Tensor dweight = c.scratch.alloc(wide(c.plain()), {N, options_.per_token});
  const Tensor dh = c.scratch.alloc(c.plain(), {R, down_.in()}), dxe = c.scratch.alloc(c.plain(), {R, gate_up_.in()});
  {
    const Arena::Scope products(c.scratch);
    Operand d_o = down_.output_grad(c, R);
    if (!d_o.plain) d_o.plain = c.scratch.alloc(c.plain(), {R, down_.out()});
    moe_combine_backward(
        c.stream,
        {.d_o = d_o.plain, .dweight = dweight, .dy = dy, .o = o_, .weight = route_.weight, .source = rows_.source});
    complete(c, d_o, d_o.plain);
    down_.backward(c, dh, d_o, used_);
  }
  const Operand dgu = gate_up_.output_grad(c, R);
  c.produce(dgu, [&](Operand o) { swiglu_backward(c.stream, o, dh, gu_); });
  gate_up_.backward(c, dxe, dgu, used_);
  moe_combine(c.stream, dx, dxe, rows_.row, {}, {});
  route_backward(c, dx, dweight);
  jitter(c, dx);
  return dx;
}

void Moe::route_backward(Context& c, Tensor dx, Tensor dweight) {
  const Operand d{.plain = c.scratch.alloc(c.plain(), {dx.rows(), options_.experts})};
  const Tensor count = c.routers.total ? c.routers.total.part(0, {options_.experts}) : Tensor{};
  moe_route_backward(c.stream, {.dlogits = d.plain,
                                .route = route_,
                                .dweight = dweight,
                                .count = count,
                                .balance = c.routers.balance,
                                .z = c.routers.z,
                                .loss_scale = c.routers.loss_scale});
  gemm(c.stream, {.d = c.params.grad(router_),
                  .a = d.by_rows(Precision::plain),
                  .b = Operand{.plain = x_}.by_rows(Precision::plain),
                  .accumulate = true});
  gemm(c.stream, {.d = dx,
                  .a = d.by_cols(Precision::plain),
                  .b = c.params.value(router_).by_rows(Precision::plain),
                  .accumulate = true});
}

}  // namespace octet::BACKEND
