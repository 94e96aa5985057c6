// The optimizer step: norm and clipping, then AdamW in blocks, computed in f32 (f64 for f64 masters).
#include "ops/cpu/emit.h"
#include "ops/formulas.h"

namespace octet::BACKEND {

namespace {

constexpr int64_t kBlock = 2048;  // elements a thread takes at a time

StepState& step_state(Tensor state) {
  CHECK(state.bytes() >= sizeof(StepState), "a step's state of ", state.bytes(), " bytes");
  return *static_cast<StepState*>(state.data);
}

// bf16 is rounded stochastically, by 16 of each element's random bits.
template <class R>
void store_rounded(const Tensor& y, int64_t first, const R* in, int64_t n, const uint32_t* random, Rounded what) {
  if (y.dtype != DType::bf16) return store(y, first, in, n);
  bf16* out = y.ptr<bf16>() + first;
  for (int64_t i = 0; i < n; ++i) out[i] = round_stochastic(float(in[i]), rounding_part(random[i], what));
}

template <class R>
uint32_t update_block(const AdamwPiece& p, const AdamwSettings& s, const AdamwScalars<R>& a, int64_t first) {
  R w[kBlock], m[kBlock], v[kBlock], g[kBlock];
  uint32_t random[kBlock] = {};
  const int64_t n = std::min(kBlock, p.master.numel() - first);
  load(w, p.master, first, n);
  load(m, p.m, first, n);
  load(v, p.v, first, n);
  load(g, p.grad, first, n);
  for (int64_t i = 0; i < n; ++i) adamw_element(w[i], m[i], v[i], g[i], a);
  if (p.master.dtype == DType::bf16 || p.m.dtype == DType::bf16 || p.v.dtype == DType::bf16) {
    const uint64_t key = rounding_key(s.seed, s.step, p.stream);
    for (int64_t i = 0; i < n; ++i) random[i] = rounding_bits(key, uint64_t(p.first + first + i));
  }
  store_rounded(p.master, first, w, n, random, Rounded::master);
  store_rounded(p.m, first, m, n, random, Rounded::m);
  store_rounded(p.v, first, v, n, random, Rounded::v);
  if (p.master.dtype == DType::bf16) load(w, p.master, first, n);  // weights and amax come from the rounded masters
  if (p.weights) store(p.weights, first, w, n);
  return largest_magnitude(w, n);
}

template <class R>
void update_piece(const AdamwPiece& p, const AdamwSettings& s, const StepState& state) {
  const int64_t N = p.master.numel();
  const auto a = adamw_scalars<R>({s.lr, s.beta1, s.beta2, s.eps, p.decay, state.clip}, state.updates);
#pragma omp parallel
  {
    uint32_t amax = 0;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < N; i += kBlock) amax = std::max(amax, update_block<R>(p, s, a, i));
    if (p.amax) raise_to(p.amax, amax);
  }
}

}  // namespace

void finish_gradients(Stream&, Tensor state, double max_norm, int64_t growth_every) {
  finish_step(step_state(state), max_norm, growth_every);
}

void adamw(Stream&, std::span<const AdamwPiece> pieces, const AdamwSettings& settings, Tensor state) {
  const StepState& s = step_state(state);
  if (s.skip) return;
  for (const AdamwPiece& p : pieces) {
    const int64_t N = p.master.numel();
    CHECK(p.m.numel() == N && p.v.numel() == N && p.grad.numel() == N, p.master.shape, " with ", p.grad.shape);
    CHECK(!p.weights || p.weights.numel() == N, p.master.shape, " to ", p.weights.shape);
    if (p.master.dtype == DType::f64) update_piece<double>(p, settings, s);
    else update_piece<float>(p, settings, s);
  }
}

}  // namespace octet::BACKEND
