// The cases of parity_cases.h on one engine: the inputs and arguments of each op.
#include "parity_cases.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "ops/workspace.h"
#include "parity_moe.h"
#include "parity_runner.h"

namespace octet::BACKEND {

namespace {

// ---- formats and copies
void run_quantize(Runner& r) {
  const Tensor x = r.input({r.k.n, r.k.c});
  quantize(r.stream, r.operand(r.k.n, r.k.c, true), x);
}
void run_quantize_bits(Runner& r) {  // every bf16, or random bits of fp32: infinities, NaN and subnormals among them
  const int64_t N = r.k.n, C = r.k.c;
  std::vector<uint32_t> bits(static_cast<size_t>(N * C));
  for (size_t i = 0; i < bits.size(); ++i)
    bits[i] = r.k.type == DType::f32 ? uint32_t(random_bits(r.k.seed, 1, i)) : uint32_t(i % 65536);
  std::vector<uint16_t> halves(bits.begin(), bits.end());
  const Tensor x = r.place(r.k.type, {N, C}, r.k.type == DType::f32 ? static_cast<void*>(bits.data()) : halves.data());
  quantize(r.stream, r.operand(N, C, true), x);
}
void run_transpose(Runner& r) {
  std::vector<uint8_t> codes(static_cast<size_t>(r.k.n * r.k.c));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = uint8_t(random_bits(r.k.seed, 1, i));
  const Tensor x = r.place(DType::e4m3, {r.k.n, r.k.c}, codes.data());
  transpose(r.stream, r.output("y", DType::e4m3, {r.k.c, r.k.n}, Compare::bits), x);
}
void run_count_codes(Runner& r) {
  std::vector<uint8_t> codes(static_cast<size_t>(r.k.n * r.k.c));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = uint8_t(random_bits(r.k.seed, 1, i));
  const uint32_t before[] = {1, 2, 3, 4, 0xfffffff0u, 5};
  const Tensor q = r.place(r.has(kE5m2) ? DType::e5m2 : DType::e4m3, {r.k.n, r.k.c}, codes.data());
  count_codes(r.stream, r.report("counts", r.place(DType::u32, {6}, before), Compare::bits), q);
}
void run_convert(Runner& r) {  // d: 4 * target + source
  const DType types[] = {DType::f32, DType::bf16, DType::f16};
  const DType to = types[r.k.d / 4], from = types[r.k.d % 4];
  std::vector<double> v(static_cast<size_t>(r.k.n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = normal(r.k.seed, 1, i) * std::exp2(double(i % 40) - 20);
  const Tensor x = r.place(from, {r.k.n}, stored(from, v).data());
  convert(r.stream, r.output("y", to, {r.k.n}, Compare::bits), x);
}
void run_add(Runner& r) {  // kA: y is a; kB: y is b
  const DType other = r.has(kB) ? r.k.type : r.has(kC) ? DType::bf16 : DType::f32;
  const Tensor a = r.input({r.k.n}), b = r.input(other, {r.k.n});
  const Tensor y = r.has(kA) ? r.report("y", a) : r.has(kB) ? r.report("y", b) : r.output("y", r.plain(), {r.k.n});
  add(r.stream, y, a, b);
}
void run_init_normal(Runner& r) {  // kA: a constant
  init_normal(r.stream, r.output("y", r.k.type, {r.k.n}), 0.25, r.has(kA) ? 0 : 0.02, r.k.seed, 5, 1000);
}

// ---- norms
void run_rmsnorm_forward(Runner& r) {
  const int64_t N = r.k.n, C = r.k.c;
  const Tensor x = r.input({N, C}), w = r.input({C});
  rmsnorm_forward(r.stream, r.operand(N, C), r.output("rstd", r.wide(), {N}), x, w, 1e-5);
}
void run_rmsnorm_backward(Runner& r) {
  const int64_t N = r.k.n, C = r.k.c, P = partial_rows(r.stream.target());
  RmsnormBackward a;
  a.dy = r.input({N, C}), a.x = r.input({N, C}), a.w = r.input({C}), a.rstd = r.positive(DType::f32, {N});
  a.dx = r.report("dx", r.input({N, C})), a.dw = r.report("dw", r.input(r.has(kA) ? DType::bf16 : DType::f32, {C}));
  a.partial = r.workspace(r.wide(), {P, C});
  rmsnorm_backward(r.stream, a);
}
void run_layernorm_forward(Runner& r) {
  const int64_t N = r.k.n, C = r.k.c;
  LayernormForward a;
  a.x = r.input({N, C}), a.w = r.input({C}), a.b = r.input({C});
  a.mean = r.output("mean", r.wide(), {N}), a.rstd = r.output("rstd", r.wide(), {N});
  a.y = r.operand(N, C);
  layernorm_forward(r.stream, a);
}
void run_layernorm_backward(Runner& r) {
  const int64_t N = r.k.n, C = r.k.c, P = partial_rows(r.stream.target());
  const DType grad = r.has(kA) ? DType::bf16 : DType::f32;
  LayernormBackward a;
  a.dy = r.input({N, C}), a.x = r.input({N, C}), a.w = r.input({C});
  a.mean = r.input(DType::f32, {N}, 0.1), a.rstd = r.positive(DType::f32, {N});
  a.dx = r.report("dx", r.input({N, C})), a.dw = r.report("dw", r.input(grad, {C}));
  a.db = r.report("db", r.input(grad, {C})), a.partial = r.workspace(r.wide(), {2 * P, C});
  layernorm_backward(r.stream, a);
}

// ---- embedding: n tokens of d; kB: half of them are one token, a run longer than a block takes at once
std::vector<int32_t> tokens_of(const Runner& r) {
  std::vector<int32_t> tokens(static_cast<size_t>(r.k.n));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = r.has(kB) && r.below(2, i) ? 3 : int32_t(r.below(r.k.d, 1000000 + i));
  return tokens;
}
void run_embedding_forward(Runner& r) {
  const Tensor w = r.input({r.k.d, r.k.c}), tokens = r.ints(tokens_of(r));
  embedding_forward(r.stream, r.output("y", r.plain(), {r.k.n, r.k.c}, Compare::bits), tokens, w);
}
void run_embedding_backward(Runner& r) {
  const auto tokens = tokens_of(r);
  std::vector<int32_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return tokens[size_t(a)] < tokens[size_t(b)]; });
  const Tensor dy = r.input({r.k.n, r.k.c}), ids = r.ints(tokens), sorted = r.ints(order);
  const Tensor dw = r.report("dw", r.input(r.has(kA) ? DType::bf16 : DType::f32, {r.k.d, r.k.c}));
  embedding_backward(r.stream, dw, dy, ids, sorted);
}

// ---- rotary embedding. c: which heads; kB: each sequence has a first position of its own; kC: a table of bf16 numbers
struct RopeCase {
  Tensor x;
  Rope rope;
};
RopeCase rope_case(Runner& r) {
  const Heads all[] = {{4, 2, 64, false}, {32, 4, 64, false}, {3, 3, 80, true}, {2, 2, 96, true},  {4, 1, 128, false},
                       {3, 3, 20, true},  {3, 3, 80, true},   {4, 4, 64, true}, {2, 1, 72, false}, {4, 4, 128, true}};
  const int64_t rotated[] = {64, 64, 20, 24, 128, 6, 32, 16, 16, 32};  // R
  const Heads h = all[r.k.c];
  const int64_t T = std::max<int64_t>(1, r.k.n / 3), first = 2, half = rotated[r.k.c] / 2;
  std::vector<int32_t> start;
  for (int64_t b = 0; b * T < r.k.n; ++b) start.push_back(int32_t(r.below(40, uint64_t(b))));
  const int64_t positions = T + first + (r.has(kB) ? 40 : 0);
  std::vector<double> table;
  for (int64_t t = 0; t < positions; ++t)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = double(t) * std::pow(10000.0, -double(i) / double(half));
      table.push_back(std::cos(angle)), table.push_back(std::sin(angle));
    }
  for (double& v : table) v = rounded(r.has(kC) ? DType::bf16 : DType::f32, v);
  const Tensor x = r.input({r.k.n, h.width()});
  const Tensor angles = r.place(r.wide(), {positions, half, 2}, stored(r.wide(), table).data(), Start::aligned);
  return {x, {angles, h, T, first, r.has(kB) ? r.ints(start) : Tensor{}, r.has(kC)}};
}
void run_rope_forward(Runner& r) {
  const RopeCase t = rope_case(r);
  rope_forward(r.stream, r.report("qkv", t.x), t.rope);
}
void run_rope_backward(Runner& r) {  // kA: in place
  const RopeCase t = rope_case(r);
  Operand d = r.operand(r.k.n, t.x.cols());
  if (r.has(kA)) d.plain = r.report("in place", t.x);
  rope_backward(r.stream, d, t.x, t.rope);
}

// ---- activations
void run_swiglu_forward(Runner& r) {
  const Tensor gu = r.input({r.k.n, 2 * r.k.c}, 2);
  swiglu_forward(r.stream, r.operand(r.k.n, r.k.c), gu);
}
void run_swiglu_backward(Runner& r) {
  const Tensor gu = r.input({r.k.n, 2 * r.k.c}, 2), dy = r.input({r.k.n, r.k.c});
  swiglu_backward(r.stream, r.operand(r.k.n, 2 * r.k.c), dy, gu);
}
void run_gelu_forward(Runner& r) {  // kA: exact
  const Tensor x = r.input({r.k.n, r.k.c}, 2);
  gelu_forward(r.stream, r.operand(r.k.n, r.k.c), x, r.has(kA) ? Gelu::exact : Gelu::tanh);
}
void run_gelu_backward(Runner& r) {
  const Tensor x = r.input({r.k.n, r.k.c}, 2), dy = r.input({r.k.n, r.k.c});
  gelu_backward(r.stream, r.operand(r.k.n, r.k.c), dy, x, r.has(kA) ? Gelu::exact : Gelu::tanh);
}

// ---- loss and sums. d: the vocabulary
void run_cross_entropy(Runner& r) {  // kA: loss alone, kB: a loss scale
  const int64_t N = r.k.n, V = r.k.c;
  std::vector<int32_t> targets(static_cast<size_t>(N));
  for (size_t i = 0; i < targets.size(); ++i) targets[i] = i % 5 == 3 ? -1 : int32_t(r.below(r.k.d, i));
  const Tensor logits = r.report("logits", r.input({N, V}, 3)), losses = r.output("losses", r.wide(), {N});
  const LossFactor factor{0.37, r.has(kB) ? r.loss_scale() : nullptr};
  cross_entropy(r.stream, losses, logits, r.ints(targets), r.k.d, factor, r.has(kA) ? Backward::no : Backward::yes);
}
Tensor start_total(Runner& r) {
  const double start = 0.75;
  return r.report("total", r.place(DType::f64, {1}, &start));
}
void run_sum(Runner& r) {
  const Tensor x = r.positive(DType::f32, {r.k.n});
  sum(r.stream, start_total(r), x);
}
void run_sum_of_squares(Runner& r) {
  const Tensor x = r.input({r.k.n});
  sum_of_squares(r.stream, start_total(r), x, r.workspace(DType::f64, {partial_sums(r.stream.target())}));
}
void run_column_sum(Runner& r) {
  const Tensor x = r.input({r.k.n, r.k.c});
  const Tensor total = r.report("total", r.input(r.has(kA) ? DType::bf16 : DType::f32, {r.k.c}));
  column_sum(r.stream, total, x, r.workspace(r.wide(), {partial_rows(r.stream.target()), r.k.c}));
}

// ---- the optimizer step
Tensor state_of(Runner& r, StepState s, bool reported) {
  const Tensor t = r.place(DType::f64, {sizeof s / sizeof(double)}, &s);
  return reported ? r.report("state", t, Compare::bits) : t;
}
// d pieces of about n elements. kA: bf16 masters; kB: bf16 moments; kC: bf16 gradients; kD: skipped. kQ: fp32 weights
void run_adamw(Runner& r) {
  const DType master = r.has(kA) ? DType::bf16 : DType::f32, moment = r.has(kB) ? DType::bf16 : DType::f32;
  const Compare how = r.has(kD) ? Compare::bits : r.has(kA) ? Compare::rounded : Compare::close;
  std::vector<AdamwPiece> pieces;
  for (int64_t i = 0; i < r.k.d; ++i) {
    const Shape shape{r.k.n + (i % 3 ? 8 * i : i)};
    const uint32_t start = 0;
    AdamwPiece p;
    p.master = r.report("master", r.input(master, shape)), p.m = r.report("m", r.input(moment, shape, 0.1));
    p.v = r.report("v", r.positive(moment, shape, 0.01)),
    p.grad = r.input(r.has(kC) ? DType::bf16 : DType::f32, shape, 0.1);
    if (i % 4 != 3) p.weights = r.output("weights", r.as(r.has(kQ) ? DType::f32 : DType::bf16), shape, how);
    if (i % 2 == 0) p.amax = r.report("amax", r.place(DType::u32, {1}, &start), Compare::scalar).ptr<uint32_t>();
    p.decay = i % 2 ? 0 : 0.1, p.stream = uint64_t(i) + 17, p.first = 1000 * i;
    pieces.push_back(p);
  }
  StepState s{.norm = 2, .clip = 0.6f, .skip = r.has(kD), .updates = 7};
  adamw(r.stream, pieces, {.lr = 1e-2, .seed = r.k.seed, .step = 6}, state_of(r, s, false));
}
void run_finish_gradients(Runner& r) {  // d: which state
  StepState s{.loss = 3, .squares = 5.5, .updates = 4, .skipped = 2};
  if (r.k.d == 1) s.squares = INFINITY;
  if (r.k.d == 2) s.squares = NAN;
  if (r.k.d == 3) s.loss = NAN;
  if (r.k.d == 4) s.nonfinite_casts = 3;
  if (r.k.d >= 6) s.loss_scale = 64, s.good_steps = 2;
  if (r.k.d == 7) s.squares = INFINITY;
  finish_gradients(r.stream, state_of(r, s, true), r.k.d == 5 ? 0 : r.k.d == 8 ? 1e-3 : 1.5, r.k.d >= 6 ? 3 : 0);
}

// ---- scaling: c slots, a history of n; kA most recent, kB te_compat, kC powers of 2, kD no new scale; d: no state
void run_update_scales(Runner& r) {
  const int64_t S = r.k.c, L = r.k.n;
  const float odd[] = {0, INFINITY, NAN, 1e-42f, 1e-38f, 3e38f};
  std::vector<float> scale(size_t(4 * S), 1), history(size_t(L * S)), largest(static_cast<size_t>(S));
  std::vector<uint32_t> amax(static_cast<size_t>(S)), nonfinite(size_t(S), 1);
  for (size_t i = 0; i < history.size(); ++i) {
    history[i] = i % 7 == 2 ? 0 : float(std::abs(normal(r.k.seed, 1, i)));
    if (r.has(kB) && i % 11 == 5) history[i] = odd[i % 3];
  }
  for (size_t i = 0; i < size_t(S); ++i) {
    amax[i] = std::bit_cast<uint32_t>(i % 4 == 1 ? odd[i / 4 % 6] : float(std::abs(normal(r.k.seed, 2, i))));
    largest[i] = i % 3 ? 448 : 57344;
  }
  ScaleState u;
  u.scale = r.report("scale", r.place(DType::f32, {S, 4}, scale.data()), Compare::bits);
  u.amax = r.report("amax", r.place(DType::u32, {S}, amax.data()), Compare::bits);
  u.history = r.report("history", r.place(DType::f32, {L, S}, history.data()), Compare::bits);
  u.largest = r.place(DType::f32, {S}, largest.data());
  u.nonfinite = r.report("nonfinite", r.place(DType::u32, {S}, nonfinite.data()), Compare::bits);
  u.most_recent = r.has(kA), u.te_compat = r.has(kB), u.power_of_2 = r.has(kC), u.rescale = !r.has(kD);
  update_scales(r.stream, u, r.k.d ? Tensor{} : state_of(r, {.nonfinite_casts = 2}, true));
}
// c slots, a history of n, groups of d slots, of which every third leaves out the slot behind it. About a third of the
// slots have been used; kA: none, kB: all.
void run_inherit_scales(Runner& r) {
  const int64_t S = r.k.c, L = r.k.n;
  std::vector<float> scale(size_t(4 * S)), history(size_t(L * S));
  std::vector<uint32_t> amax(static_cast<size_t>(S));
  for (size_t i = 0; i < scale.size(); ++i) scale[i] = float(std::abs(normal(r.k.seed, 1, i)));
  for (size_t i = 0; i < history.size(); ++i) history[i] = float(std::abs(normal(r.k.seed, 2, i)));
  for (int64_t i = 0; i < S; ++i) {
    float& newest = history[size_t((L - 1) * S + i)];
    const bool used = r.has(kB) || (!r.has(kA) && r.below(3, uint64_t(i)) == 0);
    if (L == 1 && !used) scale[size_t(4 * i)] = 1;
    if (!used) newest = 0;
    else if (i % 13 == 5) newest = i % 2 ? INFINITY : NAN;
  }
  std::vector<int32_t> groups;
  for (int64_t first = 0; first + r.k.d <= S; first += r.k.d + (groups.size() % 6 == 0)) {
    groups.push_back(int32_t(first));
    groups.push_back(int32_t(r.k.d));
  }
  ScaleState u;
  u.scale = r.report("scale", r.place(DType::f32, {S, 4}, scale.data()), Compare::bits);
  u.amax = r.report("amax", r.place(DType::u32, {S}, amax.data()), Compare::bits);
  u.history = r.report("history", r.place(DType::f32, {L, S}, history.data()), Compare::bits);
  inherit_scales(r.stream, u, matrix(r.ints(groups), std::ssize(groups) / 2));
}
void run_current_scale(Runner& r) {  // d: which amax
  const float values[] = {0, INFINITY, NAN, 1e-42f, 1e-37f, 0.3f, 7.7f, 3e38f};
  const uint32_t bits = std::bit_cast<uint32_t>(values[r.k.d]);
  const Tensor scale = r.output("scale", DType::f32, {1}, Compare::bits), amax = r.place(DType::u32, {1}, &bits);
  current_scale(r.stream, scale.ptr<float>(), amax.ptr<uint32_t>(), 448, r.has(kC));
}

const std::map<std::string, std::function<void(Runner&)>>& table() {
  static const std::map<std::string, std::function<void(Runner&)>> ops{
      {"quantize", run_quantize},
      {"quantize_bits", run_quantize_bits},
      {"transpose", run_transpose},
      {"count_codes", run_count_codes},
      {"convert", run_convert},
      {"add", run_add},
      {"init_normal", run_init_normal},
      {"rmsnorm_forward", run_rmsnorm_forward},
      {"rmsnorm_backward", run_rmsnorm_backward},
      {"layernorm_forward", run_layernorm_forward},
      {"layernorm_backward", run_layernorm_backward},
      {"embedding_forward", run_embedding_forward},
      {"embedding_backward", run_embedding_backward},
      {"rope_forward", run_rope_forward},
      {"rope_backward", run_rope_backward},
      {"swiglu_forward", run_swiglu_forward},
      {"swiglu_backward", run_swiglu_backward},
      {"gelu_forward", run_gelu_forward},
      {"gelu_backward", run_gelu_backward},
      {"cross_entropy", run_cross_entropy},
      {"sum", run_sum},
      {"sum_of_squares", run_sum_of_squares},
      {"column_sum", run_column_sum},
      {"adamw", run_adamw},
      {"finish_gradients", run_finish_gradients},
      {"update_scales", run_update_scales},
      {"inherit_scales", run_inherit_scales},
      {"current_scale", run_current_scale},
      {"moe_route", run_moe_route},
      {"moe_route_backward", run_moe_route_backward},
      {"moe_sort", run_moe_sort},
      {"moe_gather", run_moe_gather},
      {"moe_combine", run_moe_combine},
      {"moe_combine_backward", run_moe_combine_backward},
      {"moe_losses", run_moe_losses},
      {"moe_jitter", run_moe_jitter}};
  return ops;
}

class BackendEngine : public Engine {
 public:
  BackendEngine() : device_(Device::Options{.poison = true}), stream_(device_) {}
  std::vector<Output> run(const Case& k) override {
    Runner r(stream_, k);
    table().at(k.op)(r);
    return r.finish();
  }

 private:
  Device device_;
  Stream stream_;
};

}  // namespace

std::unique_ptr<Engine> parity_engine() { return device_available() ? std::make_unique<BackendEngine>() : nullptr; }

}  // namespace octet::BACKEND
