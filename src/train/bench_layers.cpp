// octet bench --ops: every op between the products that the config's model has, at its sizes.
#include "data/document_bounds.h"
#include "ops/workspace.h"
#include "train/op_bench.h"

namespace octet::BACKEND {
namespace {

void bench_embedding(OpBench& b, const BenchSizes& s) {
  const Tensor y = b.zeros(s.plain, {s.N, s.C}), w = b.random(s.plain, {s.V, s.C}), tokens = b.random_indices(s.N, s.V);
  b.time("embedding forward", [&] { embedding_forward(b.stream, y, tokens, w); });
  const Tensor dw = b.zeros(s.gradient, {s.V, s.C}), dy = b.random(s.plain, {s.N, s.C});
  const Tensor again = b.random_indices(s.N, s.V), order = b.sorting_order(s.N, s.V);  // time() has freed `tokens`
  b.time("embedding backward", [&] { embedding_backward(b.stream, dw, dy, again, order); });
}

void bench_rope(OpBench& b, const RunConfig& c, const BenchSizes& s) {
  const int64_t T = c.training.seq_len, R = c.model.rotary_dims();
  const auto rope = [&] { return Rope{.table = b.zeros(s.wide, {T, R / 2, 2}), .heads = s.heads, .T = T}; };
  {
    const Tensor qkv = b.random(s.plain, {s.N, s.heads.width()});
    b.time("rope forward", [&, r = rope()] { rope_forward(b.stream, qkv, r); });
  }
  const bool biased = c.model.arch == Arch::neox && c.model.attention_bias;
  for_each_form(c, biased ? kAllForms : kBothWays, [&](Forms forms, const std::string& suffix) {
    const Tensor d = b.random(s.plain, {s.N, s.heads.width()});
    Operand out = b.operand({.q = forms.q, .q_t = forms.q_t}, s.plain, s.gradient_codes, d.shape);
    if (forms.plain) out.plain = d;
    b.time("rope backward" + suffix, [&, r = rope()] { rope_backward(b.stream, out, d, r); });
  });
}

void bench_casts(OpBench& b, const BenchSizes& s) {
  const Tensor x = b.random(s.plain, {s.N, s.C});
  const Operand y = b.operand(kBothWays, s.plain, DType::e4m3, {s.N, s.C});
  b.time("quantize, FP8 both ways", [&] { quantize(b.stream, y, x); });
  const Operand codes = b.operand(kBothWays, s.plain, DType::e4m3, {s.N, s.C});
  quantize(b.stream, codes, b.random(s.plain, {s.N, s.C}));
  b.time("transpose of codes", [&] { transpose(b.stream, codes.q_t, codes.q); });
}

Tensor random_documents(OpBench& b, int64_t B, int64_t T) {
  std::vector<int32_t> values(size_t(2 * B * T));
  const DocumentBounds all{std::span(values).first(size_t(B * T)), std::span(values).last(size_t(B * T))};
  for (int64_t i = 0; i < B; ++i) set_random_bounds(all.row(i, T), 1, i);
  return b.indices(values).as(DType::i32, {2, B, T});
}

void bench_attention(OpBench& b, const RunConfig& c, const BenchSizes& s) {
  const int64_t B = c.training.micro_batch_size, T = c.training.seq_len;
  const auto attention = [&] {
    return Attention{.heads = s.heads,
                     .B = B,
                     .T = T,
                     .window = c.model.sliding_window,
                     .scale = 1 / std::sqrt(double(s.heads.D)),
                     .documents = c.data.intra_document_mask ? random_documents(b, B, T) : Tensor{}};
  };
  const Target& t = b.stream.target();
  const auto bytes = [](int64_t n) { return Shape{std::max<int64_t>(n, 4) / 4}; };
  const auto inputs = [&](const Attention& a) {
    return AttentionBackward{.dqkv = b.zeros(s.plain, {s.N, s.heads.width()}),
                             .d_o = b.random(s.plain, {s.N, s.heads.H * s.heads.D}),
                             .o = b.zeros(s.plain, {s.N, s.heads.H * s.heads.D}),
                             .lse = b.zeros(s.wide, {a.B, s.heads.H, a.T}),
                             .qkv = b.random(s.plain, {s.N, s.heads.width()}),
                             .workspace = b.zeros(DType::f32, bytes(attention_backward_workspace(t, a, s.plain)))};
  };
  const auto forward = [&](const AttentionBackward& x, const Attention& a, Tensor workspace) {
    attention_forward(b.stream, x.o, x.lse, x.qkv, a, workspace);
  };
  const auto workspace = [&](const Attention& a) {
    return b.zeros(DType::f32, bytes(attention_forward_workspace(t, a, s.plain)));
  };
  {
    const Attention a = attention();
    b.time("attention forward", [&, x = inputs(a), w = workspace(a)] { forward(x, a, w); });
  }
  const Attention a = attention();
  const AttentionBackward x = inputs(a);
  forward(x, a, workspace(a));
  b.time("attention backward", [&] { attention_backward(b.stream, x, a); });
}

void bench_loss(OpBench& b, const RunConfig& c, const BenchSizes& s) {
  const int64_t rows = std::min<int64_t>(s.N, std::max<int64_t>(256, (int64_t{1} << 28) / s.V));
  const Tensor losses = b.zeros(s.wide, {rows}), logits = b.random(s.plain, {rows, s.V});
  const Tensor targets = b.random_indices(rows, c.model.vocab_size);
  b.time("cross-entropy and its gradient", [&] {
    cross_entropy(b.stream, losses, logits, targets, c.model.vocab_size, {1.0 / double(rows)}, Backward::yes);
  });
}

void bench_optimizer(OpBench& b, const RunConfig& c, const BenchSizes& s) {
  const Shape n{b.stream.target().cuda ? int64_t{1} << 26 : int64_t{1} << 20};
  const DType moments = c.precision.moment_dtype, masters = c.precision.master_dtype;
  const AdamwPiece piece{.master = b.random(masters, n),
                         .m = b.zeros(moments, n),
                         .v = b.zeros(moments, n),
                         .grad = b.random(s.gradient, n),
                         .weights = b.zeros(s.plain, n)};
  const Tensor state = b.zeros(DType::u32, {int64_t(sizeof(StepState) / 4)});
  const StepState start;
  copy_to_device(b.stream, state.data, &start, sizeof start);
  finish_gradients(b.stream, state, 1.0);
  b.stream.synchronize();  // `start` may go
  b.time(concat("AdamW, ", n[0], " parameters"), [&] { adamw(b.stream, {&piece, 1}, {.lr = 1e-3}, state); });
  const Tensor grad = b.random(s.gradient, n), sum = b.zeros(DType::f64, {1});
  const Tensor partial = b.zeros(DType::f64, {partial_sums(b.stream.target())});
  b.time(concat("sum of squares, ", n[0], " gradients"), [&] { sum_of_squares(b.stream, sum, grad, partial); });
}

}  // namespace

void bench_layers(OpBench& b, const RunConfig& c) {
  const ModelConfig& m = c.model;
  const BenchSizes s{.N = c.training.micro_batch_size * c.training.seq_len,
                     .C = m.hidden_size,
                     .F = m.intermediate_size,
                     .V = (m.vocab_size + 127) / 128 * 128,
                     .heads = {m.num_heads, m.num_kv_heads, m.head_dim, m.arch == Arch::neox},
                     .plain = c.precision.param_dtype,
                     .wide = wide(c.precision.param_dtype),
                     .gradient = c.precision.grad_dtype,
                     .gradient_codes = *c.fp8.format == Fp8Format::hybrid ? DType::e5m2 : DType::e4m3};
  bench_embedding(b, s);
  bench_norm(b, c, s);
  bench_rope(b, c, s);
  bench_activation(b, c, s);
  if (c.fp8.enabled) bench_casts(b, s);
  bench_attention(b, c, s);
  bench_loss(b, c, s);
  bench_optimizer(b, c, s);
}

}  // namespace octet::BACKEND
