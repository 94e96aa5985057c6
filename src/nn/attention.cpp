#include "nn/attention.h"

#include "ops/workspace.h"

namespace octet::BACKEND {

void SelfAttention::forward(Context& c, Tensor y, const Operand& x, Tensor residual) {
  const int64_t N = c.B * c.T;
  const Heads& h = config_.heads;
  Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
  qkv_saved_ = memory.alloc(c.plain(), {N, h.width()});
  o_ = memory.alloc(c.plain(), {N, h.H * h.D});
  lse_ = memory.alloc(wide(c.plain()), {c.B, h.H, c.T});
  qkv_.forward(c, qkv_saved_, x);
  rope_forward(c.stream, qkv_saved_, rope(c));
  c.cache ? attend_to_cache(c) : attend(c);
  out_.forward(c, y, out_.input(c, o_), residual);
}

void SelfAttention::attend(Context& c) {
  const Arena::Scope scope(c.scratch);
  const Tensor workspace = c.scratch.alloc(DType::e4m3, {attention_forward_workspace(c.target(), shape(c), c.plain())});
  attention_forward(c.stream, o_, lse_, qkv_saved_, shape(c), workspace);
}

// A prompt's rows see each other alone; a row that goes on sees what the cache holds, itself with it.
void SelfAttention::attend_to_cache(Context& c) {
  const KvCache& cache = *c.cache;
  const KvRows kv = cache.layer(config_.layer);
  kv_append(c.stream, {.kv = kv, .heads = config_.heads, .T = c.T, .first = cache.first(), .start = cache.start()},
            qkv_saved_);
  if (!cache.decodes()) return attend(c);
  CHECK(c.pass == Pass::evaluate && c.T == 1, "one token a sequence, not ", c.T);
  const Arena::Scope scope(c.scratch);
  const Tensor workspace = c.scratch.alloc(DType::e4m3, {attention_decode_workspace(c.target(), config_.heads, c.B)});
  attention_decode(c.stream, o_, qkv_saved_,
                   {.kv = kv,
                    .heads = config_.heads,
                    .start = cache.start(),
                    .first = cache.first(),
                    .longest = cache.longest(),
                    .window = config_.window,
                    .scale = config_.scale},
                   workspace);
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
  Operand d = qkv_.output_grad(c, N);
  c.produce(d, [&](Operand o) { rope_backward(c.stream, o, dqkv, rope(c)); });
  qkv_.backward(c, dx, d);
  return dx;
}

}  // namespace octet::BACKEND
