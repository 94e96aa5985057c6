#include "nn/attention.h"

#include "ops/workspace.h"

namespace octet::BACKEND {

void SelfAttention::open(Context& c) {
  const int64_t N = c.B * c.T;
  const Heads& h = config_.heads;
  Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
  qkv_saved_ = memory.alloc(c.plain(), {N, h.width()});
  o_ = memory.alloc(c.plain(), {N, h.H * h.D});
  lse_ = memory.alloc(wide(c.plain()), {c.B, h.H, c.T});
}

void SelfAttention::forward(Context& c, Tensor y, const Operand& x, Tensor residual) {
  open(c);
  qkv_.forward(c, qkv_saved_, x);
  c.decodes() ? attend_to_cache(c) : attend(c);
  out_.forward(c, y, out_.input(c, o_), residual);
}

void SelfAttention::step(Context& c, Tensor y, const Norm& norm, Tensor x) {
  open(c);
  qkv_.step(c, qkv_saved_, norm, x);
  attend_to_cache(c);
  out_.forward(c, y, out_.input(c, o_), x);
}

// Training, evaluation, and the pass of a prompt, which begins its sequence: rows attend to rows of the same pass.
void SelfAttention::attend(Context& c) {
  rope_forward(c.stream, qkv_saved_, rope(c));
  if (c.cache) kv_append(c.stream, {.kv = c.cache->layer(config_.layer), .heads = config_.heads, .T = c.T}, qkv_saved_);
  const Arena::Scope scope(c.scratch);
  const Tensor workspace = c.scratch.alloc(DType::e4m3, {attention_forward_workspace(c.target(), shape(c), c.plain())});
  attention_forward(c.stream, o_, lse_, qkv_saved_, shape(c), workspace);
}

// One token a sequence: it attends to the cache, to which it is appended first.
void SelfAttention::attend_to_cache(Context& c) {
  CHECK(c.pass == Pass::evaluate && c.T == 1, "one token a sequence, not ", c.T);
  attention_step(c.stream, o_, qkv_saved_, table_,
                 {.kv = c.cache->layer(config_.layer),
                  .heads = config_.heads,
                  .position = c.cache->position(),
                  .window = config_.window,
                  .scale = config_.scale,
                  .cache_ready = true,
                  .workspace = c.cache->workspace()});
}

Tensor SelfAttention::backward(Context& c, Tensor dy) {
  const int64_t N = c.B * c.T;
  const Tensor dx = c.scratch.alloc(c.plain(), {N, config_.channels});
  const Arena::Scope scope(c.scratch);
  const Tensor d_o = c.scratch.alloc(c.plain(), o_.shape), dqkv = c.scratch.alloc(c.plain(), qkv_saved_.shape);
  {
    const Arena::Scope products(c.scratch);
    out_.backward(c, d_o, out_.output_grad(c, dy));
  }
  {
    const Arena::Scope inner(c.scratch);
    const Tensor workspace =
        c.scratch.alloc(DType::e4m3, {attention_backward_workspace(c.target(), shape(c), c.plain())});
    attention_backward(c.stream,
                       {.dqkv = dqkv, .d_o = d_o, .o = o_, .lse = lse_, .qkv = qkv_saved_, .workspace = workspace},
                       shape(c));
  }
  const Operand d = qkv_.output_grad_in_place(c, dqkv);  // its plain form is dqkv itself, rotated in place
  c.produce(d, [&](Operand o) { rope_backward(c.stream, o, dqkv, rope(c)); });
  qkv_.backward(c, dx, d);
  return dx;
}

}  // namespace octet::BACKEND
