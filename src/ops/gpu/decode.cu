// Generation: one query a sequence over the keys and values kept for it. A block takes the query heads of a group (up
// to kDecodeHeads) over a part of the keys, so that each key and value is read once. Eight elements of D lie with a
// thread: kLanes threads hold a row, a warp has 32/kLanes rows at work, each with a softmax of its own; these are
// joined in the warp, then in the block, and parts by a second kernel, all in a fixed order. Exponents are of base 2: q
// carries scale * log2(e).
#include <cmath>

#include "ops/decode.h"
#include "ops/gpu/vector.cuh"
#include "ops/workspace.h"

namespace octet::BACKEND {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;

template <class T>
struct Params {
  const T *qkv, *k, *v;
  T* o;
  const int32_t* start;
  float *sums, *stats;  // of parts: (B,H,parts,D), (B,H,parts,2); null where there is one part
  int64_t width, S;
  int H, G, D, group, chunks, parts, each, window, first, q_step;
  float scale;
};

// Of the heads of a block, as each thread sees them: running maximum, sum of weights, weighted sum of values.
template <int kQ>
struct Softmax {
  float top[kQ], weight[kQ], sum[kQ][8];
  __device__ Softmax() {
#pragma unroll
    for (int h = 0; h < kQ; ++h) {
      top[h] = -INFINITY, weight[h] = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[h][i] = 0;
    }
  }
  // What to multiply by what was summed under `before`, when the maximum is now `now`; 0 where nothing was summed.
  static __device__ float shrink(float before, float now) { return before == -INFINITY ? 0.f : exp2f(before - now); }

  template <class T, int kU>
  __device__ void add(const float (&s)[kQ][kU], const Pack<T> (&v)[kU]) {
    float p[kQ][kU];
#pragma unroll
    for (int h = 0; h < kQ; ++h) {
      float now = top[h];
#pragma unroll
      for (int u = 0; u < kU; ++u) now = fmaxf(now, s[h][u]);
      const float factor = shrink(top[h], now);
      weight[h] *= factor;
#pragma unroll
      for (int u = 0; u < kU; ++u) weight[h] += p[h][u] = shrink(s[h][u], now);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[h][i] *= factor;
      top[h] = now;
    }
#pragma unroll
    for (int u = 0; u < kU; ++u) {
      float value[8];
      unpack(value, v[u]);
#pragma unroll
      for (int h = 0; h < kQ; ++h)
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[h][i] = fmaf(p[h][u], value[i], sum[h][i]);
    }
  }
  // With the threads of the warp that hold the same elements of other rows.
  template <int kLanes>
  __device__ void join() {
#pragma unroll
    for (int h = 0; h < kQ; ++h) {
#pragma unroll
      for (int lane = kLanes; lane < 32; lane *= 2) {
        const float other = __shfl_xor_sync(~0u, top[h], lane), now = fmaxf(top[h], other);
        const float mine = shrink(top[h], now), theirs = shrink(other, now);
        weight[h] = weight[h] * mine + __shfl_xor_sync(~0u, weight[h], lane) * theirs;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[h][i] = sum[h][i] * mine + __shfl_xor_sync(~0u, sum[h][i], lane) * theirs;
        top[h] = now;
      }
    }
  }
};

template <class T, int kLanes, int kQ, int kU>
__global__ void __launch_bounds__(kThreads) decode_kernel(const __grid_constant__ Params<T> p) {
  constexpr int kRows = 32 / kLanes;  // of a warp
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, at = lane % kLanes * 8;
  const int part = int(blockIdx.x), chunk = int(blockIdx.y) % p.chunks, g = int(blockIdx.y) / p.chunks,
            b = int(blockIdx.z);
  const int head = g * p.group + chunk * kQ, heads = min(kQ, p.group - chunk * kQ);
  const bool live = at < p.D;
  float q[kQ][8];
#pragma unroll
  for (int h = 0; h < kQ; ++h) {
    Pack<T> raw{};
    if (live && h < heads) raw = load8(p.qkv + b * p.width + int64_t(head + h) * p.q_step + at);
    unpack(q[h], raw);
#pragma unroll
    for (int i = 0; i < 8; ++i) q[h][i] *= p.scale;
  }
  const int keys = p.start[b] + p.first + 1, seen = p.window ? max(0, keys - p.window) : 0;
  const int begin = seen + part * p.each, end = min(begin + p.each, keys);
  const int64_t cache = (int64_t(b) * p.G + g) * p.S * p.D + at;
  Softmax<kQ> softmax;
  for (int row = begin + warp * kRows * kU; row < end; row += kWarps * kRows * kU) {  // the same for a whole warp
    Pack<T> k[kU], v[kU];
#pragma unroll
    for (int u = 0; u < kU; ++u) {
      const int key = row + u * kRows + lane / kLanes;
      k[u] = {}, v[u] = {};
      if (live && key < end) {
        k[u] = load8(p.k + cache + int64_t(key) * p.D);
        v[u] = load8(p.v + cache + int64_t(key) * p.D);
      }
    }
    float s[kQ][kU];
#pragma unroll
    for (int u = 0; u < kU; ++u) {
      float key[8];
      unpack(key, k[u]);
#pragma unroll
      for (int h = 0; h < kQ; ++h) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) dot = fmaf(q[h][i], key[i], dot);
#pragma unroll
        for (int other = kLanes / 2; other; other /= 2) dot += __shfl_xor_sync(~0u, dot, other);
        s[h][u] = row + u * kRows + lane / kLanes < end ? dot : -INFINITY;
      }
    }
    softmax.template add<T, kU>(s, v);
  }
  softmax.template join<kLanes>();

  __shared__ float tops[kWarps][kQ], weights[kWarps][kQ], sums[kWarps][kQ][kLanes * 8];
  if (lane < kLanes) {
#pragma unroll
    for (int h = 0; h < kQ; ++h) {
      if (lane == 0) tops[warp][h] = softmax.top[h], weights[warp][h] = softmax.weight[h];
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[warp][h][at + i] = softmax.sum[h][i];
    }
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < heads * p.D; i += kThreads) {
    const int h = i / p.D, d = i % p.D;
    float top = -INFINITY, weight = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, tops[w][h]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = Softmax<kQ>::shrink(tops[w][h], top);
      weight += weights[w][h] * factor, sum += sums[w][h][d] * factor;
    }
    const int64_t row = int64_t(b) * p.H + head + h;
    if (!p.sums) {
      p.o[row * p.D + d] = T(sum / weight);
      continue;
    }
    p.sums[(row * p.parts + part) * p.D + d] = sum;
    if (d == 0) p.stats[(row * p.parts + part) * 2] = top, p.stats[(row * p.parts + part) * 2 + 1] = weight;
  }
}

// A block a head of a sequence, a thread an element of D.
template <class T>
__global__ void join_kernel(const __grid_constant__ Params<T> p) {
  const int64_t row = blockIdx.x;
  const float* stats = p.stats + row * p.parts * 2;
  float top = -INFINITY;
  for (int i = 0; i < p.parts; ++i) top = fmaxf(top, stats[2 * i]);
  for (int d = int(threadIdx.x); d < p.D; d += int(blockDim.x)) {
    float weight = 0, sum = 0;
    for (int i = 0; i < p.parts; ++i) {
      const float factor = Softmax<1>::shrink(stats[2 * i], top);
      weight += stats[2 * i + 1] * factor;
      sum += p.sums[(row * p.parts + i) * p.D + d] * factor;
    }
    p.o[row * p.D + d] = T(sum / weight);
  }
}

template <class T, int kLanes, int kQ>
void launch(Stream& s, const Params<T>& p, int64_t B) {
  constexpr int kU = kQ == 8 || sizeof(T) == 4 ? 2 : 4;  // rows that a thread loads at once: what its registers hold
  decode_kernel<T, kLanes, kQ, kU>
      <<<dim3(unsigned(p.parts), unsigned(p.G * p.chunks), unsigned(B)), kThreads, 0, raw(s)>>>(p);
  CUDA_CHECK(cudaGetLastError());
  if (p.parts == 1) return;
  join_kernel<T><<<unsigned(B * p.H), unsigned((p.D + 31) / 32 * 32), 0, raw(s)>>>(p);
  CUDA_CHECK(cudaGetLastError());
}
template <class T, int kLanes>
void launch_heads(Stream& s, Params<T> p, int64_t B) {
  const int heads = p.group == 1 ? 1 : p.group == 2 ? 2 : p.group <= 4 ? 4 : int(kDecodeHeads);
  p.chunks = (p.group + heads - 1) / heads;
  if (heads == 1) launch<T, kLanes, 1>(s, p, B);
  else if (heads == 2) launch<T, kLanes, 2>(s, p, B);
  else if (heads == 4) launch<T, kLanes, 4>(s, p, B);
  else launch<T, kLanes, 8>(s, p, B);
}

template <class T>
struct Append {
  const T* qkv;
  T *k, *v;
  const int32_t* start;
  int64_t N, T_, first, width, S, k0, v0, step;  // step: from a head's keys to the next one's
  int G, D;
};
template <class T>
__global__ void __launch_bounds__(256) append_kernel(const __grid_constant__ Append<T> a) {
  const int vectors = a.D / 8;
  const int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x, n = i / (a.G * vectors);
  if (n >= a.N) return;
  const int rest = int(i - n * a.G * vectors), g = rest / vectors, d = rest % vectors * 8;
  const int64_t b = n / a.T_, position = n % a.T_ + a.first + (a.start ? a.start[b] : 0);
  if (position >= a.S) return;  // the host has refused it
  const int64_t to = ((b * a.G + g) * a.S + position) * a.D + d;
  const T* row = a.qkv + n * a.width + g * a.step + d;
  store8(a.k + to, load8(row + a.k0));
  store8(a.v + to, load8(row + a.v0));
}

__global__ void __launch_bounds__(1024) argmax_kernel(int32_t* index, const float* x, int64_t V, int vocabulary) {
  __shared__ float values[32];
  __shared__ int places[32];
  const float* row = x + blockIdx.x * V;
  float best = -INFINITY;
  int place = vocabulary;
  const auto take = [&](float v, int i) {
    if (v > best || (v == best && i < place)) best = v, place = i;
  };
  const auto reduce = [&] {
#pragma unroll
    for (int o = 16; o; o /= 2) {
      const float v = __shfl_xor_sync(~0u, best, o);
      const int i = __shfl_xor_sync(~0u, place, o);
      take(v, i);
    }
  };
#pragma unroll 4
  for (int i = int(threadIdx.x); i < vocabulary; i += 1024)
    if (row[i] > best) best = row[i], place = i;
  reduce();
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  if (lane == 0) values[warp] = best, places[warp] = place;
  __syncthreads();
  if (warp) return;
  best = values[lane], place = places[lane];
  reduce();
  if (lane == 0) index[blockIdx.x] = place < vocabulary ? place : 0;
}

void check(const KvRows& kv, const Heads& h, Tensor qkv, int64_t B) {
  const Shape expected{B, h.G, kv.k.shape[2], h.D};
  CHECK(kv.k.shape == expected && kv.v.shape == expected && kv.k.dtype == qkv.dtype, "cache ", kv.k.shape, " for ", B,
        " sequences, ", h.G, " heads of ", h.D);
  CHECK(qkv.cols() == h.width() && h.H % h.G == 0, qkv.shape, " is not ", h.width(), " wide");
  CHECK(h.D % 8 == 0 && h.D <= 256, "attention takes head sizes that are a multiple of 8 up to 256, not ", h.D);
  CHECK(aligned({kv.k.data, kv.v.data, qkv.data}), "rows are read 16 bytes at a time");
}

}  // namespace

void kv_append(Stream& s, const KvAppend& a, Tensor qkv) {
  const Timed timed(s, Kernel::copy);
  const int64_t N = qkv.rows(), B = N / a.T, S = a.kv.k.shape[2];
  check(a.kv, a.heads, qkv, B);
  CHECK(B * a.T == N && a.first + a.T <= S, N, " rows, T ", a.T, ", from ", a.first, " of ", S);
  visit<float, bf16>(qkv.dtype, [&]<class T>() {
    const Heads& h = a.heads;
    const Append<T> p{qkv.ptr<T>(),
                      a.kv.k.ptr<T>(),
                      a.kv.v.ptr<T>(),
                      a.start ? a.start.ptr<int32_t>() : nullptr,
                      N,
                      a.T,
                      a.first,
                      qkv.cols(),
                      S,
                      h.k(0),
                      h.v(0),
                      h.k(1) - h.k(0),
                      int(h.G),
                      int(h.D)};
    append_kernel<T><<<blocks_for(N * h.G * (h.D / 8), 256), 256, 0, raw(s)>>>(p);
  });
  CUDA_CHECK(cudaGetLastError());
}

void attention_decode(Stream& s, Tensor o, Tensor qkv, const DecodeAttention& a, Tensor workspace) {
  const Timed timed(s, Kernel::attention_forward);
  const Heads& h = a.heads;
  const int64_t B = qkv.rows(), S = a.kv.k.shape[2], keys = a.window > 0 ? std::min(a.window, a.longest) : a.longest;
  check(a.kv, h, qkv, B);
  CHECK(o.numel() == B * h.H * h.D && a.longest >= 1 && a.longest <= S, o.shape, ", ", a.longest, " keys of ", S);
  CHECK(h.G * h.H < 65536 && B < 65536, "B ", B, ", H ", h.H, ", G ", h.G);
  const int64_t parts = decode_parts(s.target(), h, B, keys);
  CHECK(parts == 1 || int64_t(workspace.bytes()) >= B * h.H * parts * (h.D + 2) * 4, workspace.bytes(), " bytes for ",
        parts, " parts");
  visit<float, bf16>(qkv.dtype, [&]<class T>() {
    Params<T> p{qkv.ptr<T>(), a.kv.k.ptr<T>(), a.kv.v.ptr<T>(), o.ptr<T>(), a.start.ptr<int32_t>(),
                nullptr,      nullptr,         qkv.cols(),      S};
    p.H = int(h.H), p.G = int(h.G), p.D = int(h.D), p.group = int(h.H / h.G), p.parts = int(parts);
    p.each = int(ceil_div(keys, parts)), p.window = int(a.window), p.first = int(a.first), p.q_step = int(h.q(1));
    p.scale = float(a.scale * 1.4426950408889634);
    if (parts > 1) {
      p.sums = static_cast<float*>(workspace.data);
      p.stats = p.sums + B * h.H * parts * h.D;
    }
    if (h.D <= 64) launch_heads<T, 8>(s, p, B);
    else if (h.D <= 128) launch_heads<T, 16>(s, p, B);
    else launch_heads<T, 32>(s, p, B);
  });
}

void argmax(Stream& s, Tensor index, Tensor x, int64_t vocabulary) {
  const Timed timed(s, Kernel::loss);
  CHECK(index.numel() == x.rows() && vocabulary > 0 && vocabulary <= x.cols(), index.shape, " of ", x.shape);
  if (x.rows() == 0) return;
  argmax_kernel<<<unsigned(x.rows()), 1024, 0, raw(s)>>>(index.ptr<int32_t>(), x.ptr<float>(), x.cols(),
                                                         int(vocabulary));
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace octet::BACKEND
