#pragma once
// The cases of ops/moe.h on one engine. n tokens, d experts a token; c: experts, or channels where rows move.
#include <algorithm>

#include "ops/moe.h"
#include "parity_runner.h"

namespace octet::BACKEND {

// kA: one expert takes nearly all; kD: the first ones have 0, 1, 15, 17, 31, 32 and 33 tokens as their first choice,
// the last one the rest; kA | kD: one expert takes all.
inline std::vector<int32_t> some_experts(const Runner& r, int64_t E) {
  std::vector<int64_t> first;  // of each token; a token's other experts are those behind it
  if (r.has(kD)) {
    const int64_t rows[] = {0, 1, 15, 17, 31, 32, 33};
    for (int64_t e = 0; !r.has(kA) && e < std::min<int64_t>(E - 1, std::ssize(rows)); ++e)
      first.insert(first.end(), size_t(std::min(rows[e], r.k.n - std::ssize(first))), e);
    first.resize(size_t(r.k.n), E - 1);
    for (int64_t n = r.k.n - 1; n > 0; --n) std::swap(first[size_t(n)], first[size_t(r.below(n + 1, uint64_t(n)))]);
  } else {
    for (int64_t n = 0; n < r.k.n; ++n) first.push_back(r.has(kA) && n % 19 ? E - 1 : r.below(E, uint64_t(n)));
  }
  std::vector<int32_t> expert;
  for (const int64_t e : first)
    for (int64_t k = 0; k < r.k.d; ++k) expert.push_back(int32_t((e + k) % E));
  return expert;
}
// Where the rows of those tokens lie, as moe_sort has it.
struct HostRows {
  std::vector<int32_t> row, source;
};
inline HostRows sorted(const Runner& r, int64_t E) {
  const auto expert = some_experts(r, E);
  HostRows h{std::vector<int32_t>(expert.size()), std::vector<int32_t>(size_t(expert_rows(r.k.n, E, r.k.d)), -1)};
  int64_t next = 0;
  for (int64_t e = 0; e < E; ++e, next = padded_rows(next))
    for (size_t i = 0; i < expert.size(); ++i)
      if (expert[i] == e) {
        h.row[i] = int32_t(next);
        h.source[size_t(next++)] = int32_t(i);
      }
  return h;
}
inline Tensor matrix(Tensor t, int64_t rows) { return t.as(t.dtype, {rows, t.numel() / rows}); }

inline MoeRoute routed(Runner& r, Tensor logits) {
  const int64_t N = r.k.n, E = r.k.c, K = r.k.d;
  const MoeRoute m{r.output("expert", DType::i32, {N, K}, Compare::bits), r.output("weight", r.wide(), {N, K}),
                   r.output("probability", r.wide(), {N, E}), r.output("lse", r.wide(), {N})};
  moe_route(r.stream, m, logits, r.has(kA) ? r.input(DType::f32, {N, E}) : logits);
  return m;
}
inline void run_moe_route(Runner& r) { routed(r, r.input(DType::f32, {r.k.n, r.k.c}, 2)); }
inline void run_moe_route_backward(Runner& r) {  // kB: without a balancing loss, kC: a loss scale
  const int64_t N = r.k.n, E = r.k.c, K = r.k.d;
  const Tensor logits = r.input(DType::f32, {N, E}, 2), dw = r.input(DType::f32, {N, K}),
               count = r.positive(DType::f64, {E});
  const MoeRoute m = routed(r, logits);
  moe_route_backward(r.stream, {.dlogits = r.output("dlogits", r.plain(), {N, E}),
                                .route = m,
                                .dweight = dw,
                                .count = r.has(kB) ? Tensor{} : count,
                                .balance = 0.3,
                                .z = 0.1,
                                .loss_scale = r.has(kC) ? r.loss_scale() : nullptr});
}
inline void run_moe_sort(Runner& r) {
  const int64_t N = r.k.n, E = r.k.c, K = r.k.d, R = expert_rows(N, E, K) + 5;
  const MoeRows m{r.output("offset", DType::i32, {E + 1}, Compare::bits),
                  r.output("count", DType::i32, {E}, Compare::bits), r.output("row", DType::i32, {N, K}, Compare::bits),
                  r.output("source", DType::i32, {R}, Compare::bits)};
  moe_sort(r.stream, m, matrix(r.ints(some_experts(r, E)), N));
  std::vector<int32_t> home(size_t(E) + 1), fetched(size_t(E) + 1, -1);
  const auto offset = moe_offsets(r.stream, home.data(), m.offset, N * K);
  moe_fetch_offsets(r.stream, fetched.data(), m.offset.as(DType::i32, {1, E + 1}), N * K);
  copy_to_host(r.stream, home.data(), m.offset.data, m.offset.bytes());
  r.stream.synchronize();
  CHECK(std::equal(offset.begin(), offset.end(), home.begin(), home.end()), "offsets on the host differ");
  CHECK(fetched == home, "offsets that were fetched differ");
}
inline constexpr int64_t kExperts = 5;  // of the ops below
inline void run_moe_gather(Runner& r) {
  const HostRows h = sorted(r, kExperts);
  const Tensor y = r.output("y", r.plain(), {int64_t(h.source.size()), r.k.c});
  moe_gather(r.stream, y, r.input({r.k.n, r.k.c}), r.ints(h.source), r.k.d);
}
inline void run_moe_combine(Runner& r) {  // kB: without weights; kC: with a residual
  const int64_t N = r.k.n, C = r.k.c, K = r.k.d;
  const HostRows h = sorted(r, kExperts);
  const Tensor o = r.input({int64_t(h.source.size()), C}), w = r.positive(DType::f32, {N, K}),
               residual = r.input({N, C});
  moe_combine(r.stream, r.output("y", r.plain(), {N, C}), o, matrix(r.ints(h.row), N), r.has(kB) ? Tensor{} : w,
              r.has(kC) ? residual : Tensor{});
}
inline void run_moe_combine_backward(Runner& r) {
  const int64_t N = r.k.n, C = r.k.c, K = r.k.d;
  const HostRows h = sorted(r, kExperts);
  const int64_t R = int64_t(h.source.size());
  moe_combine_backward(r.stream, {.d_o = r.output("d_o", r.plain(), {R, C}),
                                  .dweight = r.output("dweight", r.wide(), {N, K}),
                                  .dy = r.input({N, C}),
                                  .o = r.input({R, C}),
                                  .weight = r.positive(DType::f32, {N, K}),
                                  .source = r.ints(h.source)});
}
inline void run_moe_losses(Runner& r) {  // d layers; kA: each layer's own losses, kB: none, only the load
  const int64_t N = r.k.n, E = r.k.c, L = r.k.d;
  std::vector<int32_t> count(static_cast<size_t>(E));
  for (size_t e = 0; e < count.size(); ++e) count[e] = int32_t(r.below(N + 1, e));
  const Tensor sums = r.report("sums", r.positive(DType::f64, {L, 3, E}));
  moe_add_sums(r.stream, sums.part((L - 1) * 3 * E, {3, E}), r.ints(count),
               {.expert = r.ints(std::vector<int32_t>(size_t(N), 0)).as(DType::i32, {N, 1}),
                .weight = r.positive(DType::f32, {N, 1}),
                .probability = r.positive(DType::f32, {N, E}),
                .lse = r.input(DType::f32, {N})});
  const Tensor losses = r.report("losses", r.positive(DType::f64, {2}));
  moe_losses(r.stream, {.losses = r.has(kB) ? Tensor{} : losses,
                        .total = r.output("total", DType::f64, {3, E}),
                        .load = r.report("load", r.positive(DType::f64, {L, E})),
                        .sums = sums,
                        .balance = 0.25,
                        .z = 0.5,
                        .by_layer = r.has(kA)});
}
inline void run_moe_jitter(Runner& r) {
  const int64_t N = r.k.n, C = r.k.c;
  moe_jitter(r.stream, r.output("y", r.plain(), {N, C}), r.input({N, C}), 0.1, r.k.seed);
}

}  // namespace octet::BACKEND
