// octet bench --ops: every op between the products, at the config's sizes. Where FP8 forms are written, a producer is
// timed with both of them.
#include "ops/workspace.h"
#include "train/op_bench.h"

namespace octet::BACKEND {
namespace {

struct Sizes {
  int64_t N, C, F, V;
  Heads heads;
  DType plain, wide, gradient;  // of activations, statistics, parameters' gradients
};

constexpr Forms kFp8{.q = true, .q_t = true}, kPlainForm{.plain = true};

// f(forms, suffix) for the plain form, and for the FP8 forms where the config asks for them.
template <class F>
void for_each_form(const RunConfig& c, F&& f) {
  f(kPlainForm, "");
  if (c.fp8.enabled) f(kFp8, ", FP8 both ways");
}

void bench_embedding(OpBench& b, const Sizes& s) {
  const Tensor y = b.zeros(s.plain, {s.N, s.C}), w = b.random(s.plain, {s.V, s.C}), tokens = b.indices(s.N, s.V);
  b.time("embedding forward", [&] { embedding_forward(b.stream, y, tokens, w); });
  const Tensor dw = b.zeros(s.gradient, {s.V, s.C}), dy = b.random(s.plain, {s.N, s.C});
  const Tensor same = b.indices(s.N, s.V), order = b.indices(s.N, s.V, true);
  b.time("embedding backward", [&] { embedding_backward(b.stream, dw, dy, same, order); });
}

void bench_rmsnorm(OpBench& b, const RunConfig& c, const Sizes& s) {
  for_each_form(c, [&](Forms forms, const char* suffix) {
    if (forms.q) forms.q_t = false;  // a transposition by itself follows
    const Operand y = b.operand(forms, s.plain, DType::e4m3, {s.N, s.C});
    const Tensor x = b.random(s.plain, {s.N, s.C}), w = b.random(s.plain, {s.C}), rstd = b.zeros(s.wide, {s.N});
    b.time(concat("rmsnorm forward", forms.q ? ", FP8 by rows" : suffix),
           [&] { rmsnorm_forward(b.stream, y, rstd, x, w, 1e-5); });
  });
  const RmsnormBackward a{.dx = b.random(s.plain, {s.N, s.C}),
                          .dw = b.zeros(s.gradient, {s.C}),
                          .dy = b.random(s.plain, {s.N, s.C}),
                          .x = b.random(s.plain, {s.N, s.C}),
                          .w = b.random(s.plain, {s.C}),
                          .rstd = b.zeros(s.wide, {s.N}),
                          .partial = b.zeros(s.wide, {partial_rows(b.stream.target()), s.C})};
  b.time("rmsnorm backward", [&] { rmsnorm_backward(b.stream, a); });
}

void bench_rope(OpBench& b, const RunConfig& c, const Sizes& s) {
  const int64_t T = c.training.seq_len, R = c.model.rotary_dims();
  const auto rope = [&] { return Rope{.table = b.zeros(s.wide, {T, R / 2, 2}), .heads = s.heads, .T = T}; };
  {
    const Tensor qkv = b.random(s.plain, {s.N, s.heads.width()});
    b.time("rope forward", [&, r = rope()] { rope_forward(b.stream, qkv, r); });
  }
  for_each_form(c, [&](Forms forms, const char* suffix) {
    const Tensor d = b.random(s.plain, {s.N, s.heads.width()});
    Operand out = b.operand(forms, s.plain, *c.fp8.format == Fp8Format::hybrid ? DType::e5m2 : DType::e4m3, d.shape);
    if (forms.plain) out.plain = d;
    b.time(concat("rope backward", suffix), [&, r = rope()] { rope_backward(b.stream, out, d, r); });
  });
}

void bench_swiglu(OpBench& b, const RunConfig& c, const Sizes& s) {
  for_each_form(c, [&](Forms forms, const char* suffix) {
    const Tensor gu = b.random(s.plain, {s.N, 2 * s.F});
    const Operand y = b.operand(forms, s.plain, DType::e4m3, {s.N, s.F});
    b.time(concat("swiglu forward", suffix), [&] { swiglu_forward(b.stream, y, gu); });
  });
  for_each_form(c, [&](Forms forms, const char* suffix) {
    const Tensor gu = b.random(s.plain, {s.N, 2 * s.F}), dy = b.random(s.plain, {s.N, s.F});
    const Operand dgu = b.operand(forms, s.plain, DType::e5m2, {s.N, 2 * s.F});
    b.time(concat("swiglu backward", suffix), [&] { swiglu_backward(b.stream, dgu, dy, gu); });
  });
}

void bench_casts(OpBench& b, const Sizes& s) {
  const Tensor x = b.random(s.plain, {s.N, s.C});
  const Operand y = b.operand(kFp8, s.plain, DType::e4m3, {s.N, s.C});
  b.time("quantize, FP8 both ways", [&] { quantize(b.stream, y, x); });
  const Operand codes = b.operand(kFp8, s.plain, DType::e4m3, {s.N, s.C});
  quantize(b.stream, codes, b.random(s.plain, {s.N, s.C}));
  b.time("transpose of codes", [&] { transpose(b.stream, codes.q_t, codes.q); });
}

void bench_attention(OpBench& b, const RunConfig& c, const Sizes& s) {
  const Attention a{.heads = s.heads,
                    .B = c.training.micro_batch_size,
                    .T = c.training.seq_len,
                    .window = c.model.sliding_window,
                    .scale = 1 / std::sqrt(double(s.heads.D))};
  const Target& t = b.stream.target();
  const auto bytes = [](int64_t n) { return Shape{std::max<int64_t>(n, 4) / 4}; };
  const auto inputs = [&] {
    return AttentionBackward{.dqkv = b.zeros(s.plain, {s.N, s.heads.width()}),
                             .d_o = b.random(s.plain, {s.N, s.heads.H * s.heads.D}),
                             .o = b.zeros(s.plain, {s.N, s.heads.H * s.heads.D}),
                             .lse = b.zeros(s.wide, {a.B, s.heads.H, a.T}),
                             .qkv = b.random(s.plain, {s.N, s.heads.width()}),
                             .workspace = b.zeros(DType::f32, bytes(attention_backward_workspace(t, a, s.plain)))};
  };
  const auto forward = [&](const AttentionBackward& x, Tensor workspace) {
    attention_forward(b.stream, x.o, x.lse, x.qkv, a, workspace);
  };
  const auto workspace = [&] { return b.zeros(DType::f32, bytes(attention_forward_workspace(t, a, s.plain))); };
  b.time("attention forward", [&, x = inputs(), w = workspace()] { forward(x, w); });
  const AttentionBackward x = inputs();
  forward(x, workspace());
  b.time("attention backward", [&] { attention_backward(b.stream, x, a); });
}

void bench_loss(OpBench& b, const RunConfig& c, const Sizes& s) {
  const int64_t rows = std::min<int64_t>(s.N, std::max<int64_t>(256, (int64_t{1} << 28) / s.V));
  const Tensor losses = b.zeros(s.wide, {rows}), logits = b.random(s.plain, {rows, s.V});
  const Tensor targets = b.indices(rows, c.model.vocab_size);
  b.time("cross-entropy and its gradient", [&] {
    cross_entropy(b.stream, losses, logits, targets, c.model.vocab_size, {1.0 / double(rows)}, Backward::yes);
  });
}

void bench_optimizer(OpBench& b, const RunConfig& c, const Sizes& s) {
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
  const Sizes s{.N = c.training.micro_batch_size * c.training.seq_len,
                .C = m.hidden_size,
                .F = m.intermediate_size,
                .V = (m.vocab_size + 127) / 128 * 128,
                .heads = {m.num_heads, m.num_kv_heads, m.head_dim, m.arch == Arch::neox},
                .plain = c.precision.param_dtype,
                .wide = wide(c.precision.param_dtype),
                .gradient = c.precision.grad_dtype};
  bench_embedding(b, s);
  bench_rmsnorm(b, c, s);
  bench_rope(b, c, s);
  bench_swiglu(b, c, s);
  if (c.fp8.enabled) bench_casts(b, s);
  bench_attention(b, c, s);
  bench_loss(b, c, s);
  bench_optimizer(b, c, s);
}

}  // namespace octet::BACKEND
