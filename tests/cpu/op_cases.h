#pragma once
// Every op once, on shapes that cross the blocks of the implementation: what several tests do with all of them.
#include <algorithm>
#include <functional>
#include <string>

#include "cpu/lab.h"

namespace octet::BACKEND {

struct OpCase {
  std::string name;
  std::function<std::vector<Tensor>(Lab&, DType)> run;  // plain type; a fresh lab gives the same inputs; all outputs
};

inline std::vector<Tensor> run_norms(Lab& lab, DType t) {
  const int64_t N = 67, C = 45;
  Stream& s = lab.stream();
  const Tensor x = lab.normal(t, {N, C}), w = lab.normal(t, {C}, 0.3, 1), b = lab.normal(t, {C});
  const Tensor dy = lab.normal(t, {N, C}), y = lab.empty(t, {N, C}), z = lab.empty(t, {N, C});
  const Tensor r = lab.empty(wide(t), {N}), mean = lab.empty(wide(t), {N}), rstd = lab.empty(wide(t), {N});
  const Tensor dx = lab.normal(t, {N, C}), dw = lab.normal(wide(t), {C}), db = lab.normal(wide(t), {C});
  const Tensor dx2 = lab.normal(t, {N, C}), dw2 = lab.normal(t, {C});
  rmsnorm_forward(s, {.plain = y}, r, x, w, 1e-5);
  rmsnorm_backward(s, {dx2, dw2, dy, x, w, r, lab.partial(t, C)});
  layernorm_forward(s, {{.plain = z}, mean, rstd, x, w, b, 1e-5});
  layernorm_backward(s, {dx, dw, db, dy, x, w, mean, rstd, lab.partial(t, C, 2)});
  return {y, r, z, mean, rstd, dx, dw, db, dx2, dw2};
}
inline std::vector<Tensor> run_attention(Lab& lab, DType t, Heads heads, int64_t window) {
  const Attention a{heads, 2, 150, window, 0.3};
  const int64_t N = a.B * a.T, W = heads.width(), O = heads.H * heads.D;
  Stream& s = lab.stream();
  const Tensor qkv = lab.normal(t, {N, W}), o = lab.empty(t, {N, O}), lse = lab.empty(wide(t), {a.B, heads.H, a.T});
  const Tensor d_o = lab.normal(t, {N, O}), dqkv = lab.empty(t, {N, W}), dx = lab.empty(t, {N, W});
  const Rope rope{rope_table(lab, t, a.T, 8), heads, a.T};
  rope_forward(s, qkv, rope);
  attention_forward(s, o, lse, qkv, a, {});
  attention_backward(s, {dqkv, d_o, o, lse, qkv, {}}, a);
  rope_backward(s, {.plain = dx}, dqkv, rope);
  return {qkv, o, lse, dqkv, dx};
}
inline std::vector<Tensor> run_activations(Lab& lab, DType t) {
  const int64_t N = 33, F = 29;
  Stream& s = lab.stream();
  const Tensor x = lab.normal(t, {N, 2 * F}, 2), dy = lab.normal(t, {N, F}), dz = lab.normal(t, {N, 2 * F});
  std::vector<Tensor> out{lab.empty(t, {N, F})};
  for (int i = 0; i < 5; ++i) out.push_back(lab.empty(t, {N, 2 * F}));
  swiglu_forward(s, {.plain = out[0]}, x);
  swiglu_backward(s, {.plain = out[1]}, dy, x);
  gelu_forward(s, {.plain = out[2]}, x, Gelu::exact);
  gelu_forward(s, {.plain = out[3]}, x, Gelu::tanh);
  gelu_backward(s, {.plain = out[4]}, dz, x, Gelu::exact);
  gelu_backward(s, {.plain = out[5]}, dz, x, Gelu::tanh);
  return out;
}
inline std::vector<Tensor> run_products(Lab& lab, DType t) {
  const int64_t N = 300, C = 70, O = 130;
  Stream& s = lab.stream();
  const Tensor x = lab.normal(t, {N, C}), w = lab.normal(t, {O, C}), b = lab.normal(t, {O}), y = lab.empty(t, {N, O});
  const Tensor residual = lab.normal(t, {N, O}), dx = lab.empty(t, {N, C}), dw = lab.normal(wide(t), {O, C});
  gemm(s, {.d = y, .a = {x}, .b = {w}, .residual = residual, .bias = b});
  gemm(s, {.d = dx, .a = {residual}, .b = {w, true}});
  gemm(s, {.d = dw, .a = {residual, true}, .b = {x, true}, .accumulate = true});
  return {y, dx, dw};
}
inline std::vector<Tensor> run_sums(Lab& lab, DType t) {
  const int64_t N = 211, C = 37;
  Stream& s = lab.stream();
  const Tensor x = lab.normal(t, {N, C}), total = lab.normal(wide(t), {C}), one = lab.zeros(DType::f64, {1});
  const Tensor squares = lab.zeros(DType::f64, {1}), y = lab.empty(t, {N, C});
  column_sum(s, total, x, lab.partial(t, C));
  sum(s, one, total);
  sum_of_squares(s, squares, x, lab.empty(DType::f64, {partial_sums(s.target())}));
  add(s, y, x, lab.normal(DType::f32, {N, C}));
  const Tensor z = lab.empty(t, {N, C});
  init_normal(s, z, 0.5, 2, 3, 4, 5);
  return {total, one, squares, y, z};
}
inline std::vector<Tensor> run_tokens(Lab& lab, DType t) {
  const int64_t N = 120, V = 50, C = 21;
  Stream& s = lab.stream();
  std::vector<int32_t> id(N), order(N);
  for (int64_t n = 0; n < N; ++n) {
    id[size_t(n)] = int32_t(random_bits(1, 1, uint64_t(n)) % uint64_t(V) / 2);
    order[size_t(n)] = int32_t(n);
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return id[size_t(a)] < id[size_t(b)]; });
  const Tensor tokens = lab.of(id), w = lab.normal(t, {V, C}), y = lab.empty(t, {N, C});
  const Tensor dy = lab.normal(t, {N, C}), dw = lab.normal(wide(t), {V, C}), logits = lab.normal(t, {N, V}, 3);
  const Tensor losses = lab.empty(wide(t), {N});
  embedding_forward(s, y, tokens, w);
  embedding_backward(s, dw, dy, tokens, lab.of(order));
  cross_entropy(s, losses, logits, tokens, V - 3, 0.125, Backward::yes);
  return {y, dw, losses, logits};
}
inline std::vector<OpCase> op_cases() {
  const auto attention = [](Heads heads, int64_t window) {
    return [=](Lab& lab, DType t) { return run_attention(lab, t, heads, window); };
  };
  return {{"norms", run_norms},
          {"attention, grouped", attention({.H = 4, .G = 2, .D = 16}, 0)},
          {"attention, interleaved, windowed", attention({.H = 3, .G = 3, .D = 13, .interleaved = true}, 70)},
          {"activations", run_activations},
          {"products", run_products},
          {"sums", run_sums},
          {"tokens", run_tokens}};
}

}  // namespace octet::BACKEND
