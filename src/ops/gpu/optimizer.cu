// The optimizer step: norm and clipping, then AdamW over many pieces in one launch. A block takes a contiguous run of
// chunks, so that it changes pieces seldom; the rates and bias corrections are found once a block.
#include "ops/formulas.h"
#include "ops/gpu/reduce.cuh"

namespace octet::BACKEND {

namespace {

constexpr int kThreads = 256, kChunk = kThreads * 8, kPieces = 32;

struct Piece {
  void *master, *m, *v, *weights;
  const void* grad;
  uint32_t* amax;
  uint64_t stream;
  int64_t first, n, chunk;  // index within the parameter, elements, first chunk
  float decay;
  bool aligned, weights_bf16;
};
struct Pieces {
  Piece piece[kPieces];
  int count;
  int64_t chunks;
  AdamwRates rates;
  uint64_t seed, step;
  const StepState* state;
};

// bf16 is rounded by 16 of each element's random bits, from bit `shift` on; fp32 as it is.
template <class T>
__device__ void store_rounded(T* to, float (&v)[8], const uint64_t (&random)[8], int shift, int count, bool fast) {
  if constexpr (sizeof(T) == 2) {
    uint32_t w[4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const bf16 y = round_stochastic(v[j], uint32_t(random[j] >> shift));
      v[j] = float(y);
      w[j / 2] = j % 2 ? w[j / 2] | uint32_t(y.bits) << 16 : y.bits;
    }
    if (fast) {
      store8(to, Pack<T>{{w[0], w[1], w[2], w[3]}});
      return;
    }
  } else if (fast) {
    store8(to, pack<T>(v));
    return;
  }
  store<false>(to, v, count);
}
template <class T>
__device__ inline Pack<T> load_part(const void* p, int64_t at, int count, bool fast) {
  const T* from = static_cast<const T*>(p) + at;
  return fast ? load8(from) : load<false>(from, count);
}

template <class W, class M, class G>
__device__ uint32_t update(const Piece& p, int64_t at, AdamwScalars<float> a, uint64_t seed, uint64_t step) {
  const int count = int(max(int64_t(0), min(int64_t(8), p.n - at)));
  const bool fast = p.aligned && count == 8;
  if (count == 0) return 0;
  const Pack<W> pw = load_part<W>(p.master, at, count, fast);
  const Pack<M> pm = load_part<M>(p.m, at, count, fast), pv = load_part<M>(p.v, at, count, fast);
  const Pack<G> pg = load_part<G>(p.grad, at, count, fast);
  a.decay = p.decay;
  float w[8], m[8], v[8], g[8];
  unpack(w, pw);
  unpack(m, pm);
  unpack(v, pv);
  unpack(g, pg);
  uint64_t random[8] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    adamw_element(w[j], m[j], v[j], g[j], a);
    if constexpr (sizeof(W) == 2 || sizeof(M) == 2)
      random[j] = rounding_bits(seed, step, p.stream, uint64_t(p.first + at + j));
  }
  store_rounded(static_cast<W*>(p.master) + at, w, random, 0, count, fast);  // w is now what was stored
  store_rounded(static_cast<M*>(p.m) + at, m, random, 16, count, fast);
  store_rounded(static_cast<M*>(p.v) + at, v, random, 32, count, fast);
  if (p.weights && p.weights_bf16) {
    if (fast) store8(static_cast<bf16*>(p.weights) + at, pack<bf16>(w));
    else store<false>(static_cast<bf16*>(p.weights) + at, w, count);
  } else if (p.weights) {
    if (fast) store8(static_cast<float*>(p.weights) + at, pack<float>(w));
    else store<false>(static_cast<float*>(p.weights) + at, w, count);
  }
  uint32_t amax = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (j < count) amax = max(amax, magnitude(w[j]));
  return amax;
}

template <class W, class M, class G>
__global__ void __launch_bounds__(kThreads, 3) adamw_kernel(const __grid_constant__ Pieces all) {
  __shared__ AdamwScalars<float> scalars;
  if (all.state->skip) return;
  if (threadIdx.x == 0) {
    AdamwRates rates = all.rates;
    rates.clip = all.state->clip;
    scalars = adamw_scalars<float>(rates, all.state->updates);
  }
  __syncthreads();
  const AdamwScalars<float> a = scalars;
  const int64_t end = all.chunks * (blockIdx.x + 1) / gridDim.x;
  int64_t chunk = all.chunks * blockIdx.x / gridDim.x;
  int i = 0;
  while (chunk < end) {
    while (i + 1 < all.count && all.piece[i + 1].chunk <= chunk) ++i;
    const Piece& p = all.piece[i];
    const int64_t stop = min(end, i + 1 < all.count ? all.piece[i + 1].chunk : all.chunks);
    uint32_t amax = 0;
    for (; chunk < stop; ++chunk)
      amax = max(amax, update<W, M, G>(p, (chunk - p.chunk) * kChunk + threadIdx.x * 8, a, all.seed, all.step));
    if (p.amax) {
      block_amax(p.amax, amax);
      __syncthreads();  // its shared room is used again
    }
  }
}

__global__ void finish_kernel(StepState* state, double max_norm) { finish_step(*state, max_norm); }

StepState* step_state(Tensor state) {
  CHECK(state.bytes() >= sizeof(StepState), "a step's state of ", state.bytes(), " bytes");
  return static_cast<StepState*>(state.data);
}

Piece piece_of(const AdamwPiece& p, int64_t chunk) {
  const int64_t N = p.master.numel();
  CHECK(p.m.numel() == N && p.v.numel() == N && p.grad.numel() == N, p.master.shape, " with ", p.grad.shape);
  CHECK(!p.weights || p.weights.numel() == N, p.master.shape, " to ", p.weights.shape);
  CHECK(p.m.dtype == p.v.dtype, "moments of ", name_of(p.m.dtype), " and ", name_of(p.v.dtype));
  CHECK(!p.weights || p.weights.dtype == DType::bf16 || p.weights.dtype == DType::f32, name_of(p.weights.dtype));
  return {.master = p.master.data,
          .m = p.m.data,
          .v = p.v.data,
          .weights = p.weights.data,
          .grad = p.grad.data,
          .amax = p.amax,
          .stream = p.stream,
          .first = p.first,
          .n = N,
          .chunk = chunk,
          .decay = float(p.decay),
          .aligned = aligned({p.master.data, p.m.data, p.v.data, p.grad.data, p.weights.data}),
          .weights_bf16 = p.weights.dtype == DType::bf16};
}

bool same_types(const AdamwPiece& a, const AdamwPiece& b) {
  return a.master.dtype == b.master.dtype && a.m.dtype == b.m.dtype && a.grad.dtype == b.grad.dtype;
}

void launch(Stream& s, const AdamwPiece& types, const Pieces& all) {
  const unsigned blocks = unsigned(std::min<int64_t>(all.chunks, int64_t(s.target().multiprocessors) * 3));
  if (blocks == 0) return;
  visit<float, bf16>(types.master.dtype, [&]<class W>() {
    visit<float, bf16>(types.m.dtype, [&]<class M>() {
      visit<float, bf16>(types.grad.dtype,
                         [&]<class G>() { adamw_kernel<W, M, G><<<blocks, kThreads, 0, raw(s)>>>(all); });
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void finish_gradients(Stream& s, Tensor state, double max_norm) {
  const Timed timed(s, Kernel::optimizer);
  finish_kernel<<<1, 1, 0, raw(s)>>>(step_state(state), max_norm);
  CUDA_CHECK(cudaGetLastError());
}

void adamw(Stream& s, std::span<const AdamwPiece> pieces, const AdamwSettings& settings, Tensor state) {
  const Timed timed(s, Kernel::optimizer);
  for (size_t i = 0; i < pieces.size();) {
    Pieces all{.rates = {settings.lr, settings.beta1, settings.beta2, settings.eps, 0, 1},
               .seed = settings.seed,
               .step = settings.step,
               .state = step_state(state)};
    const AdamwPiece& first = pieces[i];
    for (; i < pieces.size() && all.count < kPieces && same_types(first, pieces[i]); ++i) {
      if (pieces[i].master.numel() == 0) continue;
      all.piece[all.count++] = piece_of(pieces[i], all.chunks);
      all.chunks += ceil_div(pieces[i].master.numel(), kChunk);
    }
    launch(s, first, all);
  }
}

}  // namespace octet::BACKEND
