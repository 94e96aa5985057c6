// octet bench --ops: the ops in which architectures differ. Llama and Mixtral have RMSNorm and SwiGLU; GPT-NeoX has
// LayerNorm, GELU and biases, whose gradients are sums over the plain gradient of a product's output.
#include "ops/workspace.h"
#include "train/op_bench.h"

namespace octet::BACKEND {
namespace {

// f(y, suffix): the plain form, and where the config asks for FP8 its codes by rows: a transposition by itself follows.
template <class F>
void for_each_norm_form(OpBench& b, const RunConfig& c, const BenchSizes& s, F&& f) {
  f(b.operand({.plain = true}, s.plain, DType::e4m3, {s.N, s.C}), "");
  if (c.fp8.enabled) f(b.operand({.q = true}, s.plain, DType::e4m3, {s.N, s.C}), ", FP8 by rows");
}

void bench_rmsnorm(OpBench& b, const RunConfig& c, const BenchSizes& s) {
  for_each_norm_form(b, c, s, [&](const Operand& y, const char* suffix) {
    const Tensor x = b.random(s.plain, {s.N, s.C}), w = b.random(s.plain, {s.C}), rstd = b.zeros(s.wide, {s.N});
    b.time(concat("rmsnorm forward", suffix), [&] { rmsnorm_forward(b.stream, y, rstd, x, w, 1e-5); });
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

void bench_layernorm(OpBench& b, const RunConfig& c, const BenchSizes& s) {
  for_each_norm_form(b, c, s, [&](const Operand& y, const char* suffix) {
    const LayernormForward a{.y = y,
                             .mean = b.zeros(s.wide, {s.N}),
                             .rstd = b.zeros(s.wide, {s.N}),
                             .x = b.random(s.plain, {s.N, s.C}),
                             .w = b.random(s.plain, {s.C}),
                             .b = b.random(s.plain, {s.C})};
    b.time(concat("layernorm forward", suffix), [&] { layernorm_forward(b.stream, a); });
  });
  const LayernormBackward a{.dx = b.random(s.plain, {s.N, s.C}),
                            .dw = b.zeros(s.gradient, {s.C}),
                            .db = b.zeros(s.gradient, {s.C}),
                            .dy = b.random(s.plain, {s.N, s.C}),
                            .x = b.random(s.plain, {s.N, s.C}),
                            .w = b.random(s.plain, {s.C}),
                            .mean = b.zeros(s.wide, {s.N}),
                            .rstd = b.zeros(s.wide, {s.N}),
                            .partial = b.zeros(s.wide, {2 * partial_rows(b.stream.target()), s.C})};
  b.time("layernorm backward", [&] { layernorm_backward(b.stream, a); });
}

void bench_swiglu(OpBench& b, const RunConfig& c, const BenchSizes& s) {
  for_each_form(c, kBothWays, [&](Forms forms, const std::string& suffix) {
    const Tensor gu = b.random(s.plain, {s.N, 2 * s.F});
    const Operand y = b.operand(forms, s.plain, DType::e4m3, {s.N, s.F});
    b.time("swiglu forward" + suffix, [&] { swiglu_forward(b.stream, y, gu); });
  });
  for_each_form(c, kBothWays, [&](Forms forms, const std::string& suffix) {
    const Tensor gu = b.random(s.plain, {s.N, 2 * s.F}), dy = b.random(s.plain, {s.N, s.F});
    const Operand dgu = b.operand(forms, s.plain, s.gradient_codes, {s.N, 2 * s.F});
    b.time("swiglu backward" + suffix, [&] { swiglu_backward(b.stream, dgu, dy, gu); });
  });
}

void bench_gelu(OpBench& b, const RunConfig& c, const BenchSizes& s) {
  const Gelu kind = c.model.hidden_act == "gelu" ? Gelu::exact : Gelu::tanh;
  const std::string name = kind == Gelu::exact ? "gelu" : "gelu (tanh)";
  for_each_form(c, kBothWays, [&](Forms forms, const std::string& suffix) {
    const Tensor x = b.random(s.plain, {s.N, s.F});
    const Operand y = b.operand(forms, s.plain, DType::e4m3, {s.N, s.F});
    b.time(name + " forward" + suffix, [&] { gelu_forward(b.stream, y, x, kind); });
  });
  for_each_form(c, kAllForms, [&](Forms forms, const std::string& suffix) {
    const Tensor x = b.random(s.plain, {s.N, s.F}), dy = b.random(s.plain, {s.N, s.F});
    const Operand dx = b.operand(forms, s.plain, s.gradient_codes, {s.N, s.F});
    b.time(name + " backward" + suffix, [&] { gelu_backward(b.stream, dx, dy, x, kind); });
  });
}

void bench_bias_gradients(OpBench& b, const BenchSizes& s) {
  for (const int64_t width : {s.C, s.F}) {
    const Tensor dy = b.random(s.plain, {s.N, width}), db = b.zeros(s.gradient, {width});
    const Tensor partial = b.zeros(s.wide, {partial_rows(b.stream.target()), width});
    b.time(concat("bias gradient, ", width, " columns"), [&] { column_sum(b.stream, db, dy, partial); });
  }
}

}  // namespace

void bench_norm(OpBench& b, const RunConfig& c, const BenchSizes& s) {
  if (c.model.arch == Arch::neox) bench_layernorm(b, c, s);
  else bench_rmsnorm(b, c, s);
}

void bench_activation(OpBench& b, const RunConfig& c, const BenchSizes& s) {
  if (c.model.arch != Arch::neox) return bench_swiglu(b, c, s);
  bench_gelu(b, c, s);
  bench_bias_gradients(b, s);
}

}  // namespace octet::BACKEND
