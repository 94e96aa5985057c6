// The optimizer step: norm and clipping, then AdamW over many pieces in one launch. A thread block takes consecutive
// chunks, so that it seldom changes to another piece; rates and bias corrections are computed once a block.
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

// Four elements a thread: 16 bytes of fp32, so that a warp accesses whole lines, whatever the other tensors' types are.
template <class T>
struct Quad {
  std::conditional_t<sizeof(T) == 4, uint4, uint2> raw;
};
template <class T>
__device__ inline void load4(float (&v)[4], const void* from, int64_t at, int count, bool fast) {
  const T* x = static_cast<const T*>(from) + at;
  if (!fast) {
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = j < count ? float(x[j]) : 0.f;
    return;
  }
  const auto q = *reinterpret_cast<const Quad<T>*>(x);
  if constexpr (sizeof(T) == 4) {
    v[0] = __uint_as_float(q.raw.x), v[1] = __uint_as_float(q.raw.y);
    v[2] = __uint_as_float(q.raw.z), v[3] = __uint_as_float(q.raw.w);
  } else {
    v[0] = __uint_as_float(q.raw.x << 16), v[1] = __uint_as_float(q.raw.x & 0xffff0000u);
    v[2] = __uint_as_float(q.raw.y << 16), v[3] = __uint_as_float(q.raw.y & 0xffff0000u);
  }
}
template <class T>
__device__ inline void store4(void* to, int64_t at, const float (&v)[4], int count, bool fast) {
  T* y = static_cast<T*>(to) + at;
  if (!fast) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (j < count) y[j] = T(v[j]);
  } else if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float4*>(y) = make_float4(v[0], v[1], v[2], v[3]);
  } else {
    *reinterpret_cast<uint2*>(y) = make_uint2(Narrow<T>::pair(v[0], v[1]), Narrow<T>::pair(v[2], v[3]));
  }
}
// v becomes what is stored: bf16 is rounded stochastically, by 16 of each element's random bits; fp32 stays as it is.
template <class T>
__device__ inline void round4(float (&v)[4], const uint32_t (&random)[4], Rounded what) {
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = float(round_stochastic(v[j], rounding_part(random[j], what)));
  }
}
// rounding_bits() of four elements from index `first` on, which is usually even, so that two hashes suffice.
__device__ inline void rounding4(uint32_t (&random)[4], uint64_t key, uint64_t first) {
  if (first % 2 == 0) {
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const uint64_t pair = mix(key + first / 2 + j / 2);
      random[j] = uint32_t(pair), random[j + 1] = uint32_t(pair >> 32);
    }
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) random[j] = rounding_bits(key, first + j);
  }
}

// Updates the thread's elements of a chunk, kGroups times four, all loaded before the first is
// used. Returns their amax.
template <class W, class M, class G>
__device__ uint32_t update(const Piece& p, int64_t chunk, AdamwScalars<float> a, uint64_t key) {
  constexpr int kGroups = kChunk / kThreads / 4;
  float w[kGroups][4], m[kGroups][4], v[kGroups][4], g[kGroups][4];
  const auto at = [&](int k) { return chunk * kChunk + (k * kThreads + int(threadIdx.x)) * 4; };
  const auto count = [&](int k) { return int(max(int64_t(0), min(int64_t(4), p.n - at(k)))); };
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
    const bool fast = p.aligned && count(k) == 4;
    load4<W>(w[k], p.master, at(k), count(k), fast);
    load4<M>(m[k], p.m, at(k), count(k), fast);
    load4<M>(v[k], p.v, at(k), count(k), fast);
    load4<G>(g[k], p.grad, at(k), count(k), fast);
  }
  a.decay = p.decay;
  uint32_t amax = 0;
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
    const bool fast = p.aligned && count(k) == 4;
    uint32_t random[4] = {};
    if constexpr (sizeof(W) == 2 || sizeof(M) == 2) rounding4(random, key, uint64_t(p.first + at(k)));
#pragma unroll
    for (int j = 0; j < 4; ++j) adamw_element(w[k][j], m[k][j], v[k][j], g[k][j], a);
    round4<W>(w[k], random, Rounded::master);
    round4<M>(m[k], random, Rounded::m);
    round4<M>(v[k], random, Rounded::v);
    store4<W>(p.master, at(k), w[k], count(k), fast);
    store4<M>(p.m, at(k), m[k], count(k), fast);
    store4<M>(p.v, at(k), v[k], count(k), fast);
    if (p.weights && p.weights_bf16) store4<bf16>(p.weights, at(k), w[k], count(k), fast);
    else if (p.weights) store4<float>(p.weights, at(k), w[k], count(k), fast);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (j < count(k)) amax = max(amax, magnitude(w[k][j]));
  }
  return amax;
}

// Thread blocks an SM: bf16 moments take fewer registers, and need more blocks to keep as many bytes in flight.
template <class M>
constexpr int kBlocks = sizeof(M) == 2 ? 4 : 3;

template <class W, class M, class G>
__global__ void __launch_bounds__(kThreads, kBlocks<M>) adamw_kernel(const __grid_constant__ Pieces all) {
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
    const uint64_t key = rounding_key(all.seed, all.step, p.stream);
    uint32_t amax = 0;
    for (; chunk < stop; ++chunk) amax = max(amax, update<W, M, G>(p, chunk - p.chunk, a, key));
    if (p.amax) {
      block_amax(p.amax, amax, read_amax(p.amax));
      __syncthreads();  // before its shared memory is reused
    }
  }
}

__global__ void finish_kernel(StepState* state, double max_norm, int64_t growth_every) {
  finish_step(*state, max_norm, growth_every);
}

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
  if (all.chunks == 0) return;
  visit<float, bf16>(types.master.dtype, [&]<class W>() {
    visit<float, bf16>(types.m.dtype, [&]<class M>() {
      const auto blocks = unsigned(std::min<int64_t>(all.chunks, int64_t(s.target().multiprocessors) * kBlocks<M>));
      visit<float, bf16>(types.grad.dtype,
                         [&]<class G>() { adamw_kernel<W, M, G><<<blocks, kThreads, 0, raw(s)>>>(all); });
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void finish_gradients(Stream& s, Tensor state, double max_norm, int64_t growth_every) {
  const Timed timed(s, Kernel::optimizer);
  finish_kernel<<<1, 1, 0, raw(s)>>>(step_state(state), max_norm, growth_every);
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
