// The operations of generation: appending to the KV cache, attention to it, argmax.
#include "ops/decode.h"
#include "ops/gpu/decode_kernels.cuh"
#include "ops/gpu/vector.cuh"

namespace octet::BACKEND {
namespace {

using namespace decode;

template <class T>
struct Append {
  const T* qkv;
  T *k, *v;
  const int32_t* start;
  int64_t N, T_, first, width, S, k0, v0, step;  // step: columns between the keys of consecutive heads
  int G, D;
};
template <class T>
__global__ void __launch_bounds__(256) append_kernel(const __grid_constant__ Append<T> a) {
  const int vectors = a.D / 8;
  const int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x, n = i / (a.G * vectors);
  if (n >= a.N) return;
  const int rest = int(i - n * a.G * vectors), g = rest / vectors, d = rest % vectors * 8;
  const int64_t b = n / a.T_, position = n % a.T_ + a.first + (a.start ? a.start[b] : 0);
  if (position >= a.S) return;  // KvCache::advance() has thrown on the host
  const int64_t to = ((b * a.G + g) * a.S + position) * a.D + d;
  const T* row = a.qkv + n * a.width + g * a.step + d;
  store8(a.k + to, load8(row + a.k0));
  store8(a.v + to, load8(row + a.v0));
}

__global__ void __launch_bounds__(1024)
    argmax_kernel(int32_t* index, float* largest, const float* x, int64_t V, int vocabulary) {
  __shared__ float values[32];
  __shared__ int places[32];
  const float* row = x + blockIdx.x * V;
  float best = -INFINITY;
  int place = vocabulary;
  const auto take = [&](float v, int i) {
    if (v > best || (v == best && i < place) || (v != v && best == best)) best = v, place = i;  // a NaN stays
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
    if (row[i] > best || (row[i] != row[i] && best == best)) best = row[i], place = i;
  reduce();
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  if (lane == 0) values[warp] = best, places[warp] = place;
  __syncthreads();
  if (warp) return;
  best = values[lane], place = places[lane];
  reduce();
  if (lane == 0) index[blockIdx.x] = place < vocabulary ? place : 0, largest[blockIdx.x] = best;
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

namespace {

void attend(Stream& s, Tensor o, Tensor qkv, Tensor rope_table, const DecodeAttention& a) {
  const Timed timed(s, Kernel::attention_forward);
  const Heads& h = a.heads;
  const int64_t B = qkv.rows(), S = a.kv.k.shape[2], keys = a.window > 0 ? std::min(a.window, S) : S;
  check(a.kv, h, qkv, B);
  CHECK(o.numel() == B * h.H * h.D && a.position.numel() == B, o.shape, ", ", a.position.shape);
  CHECK(decode_blocks(h) < 65536 && h.H < 65536 && B < 65536 && S < int64_t{1} << 31, "B ", B, ", H ", h.H, ", G ", h.G,
        ", S ", S);
  const int64_t parts = decode_parts(s.target(), h, B, keys), sums = B * h.H * parts * h.D;
  CHECK(int64_t(a.workspace.bytes()) >= decode_counters(h, B) + (parts > 1 ? sums / h.D * (h.D + 2) * 4 : 0),
        a.workspace.bytes(), " bytes for ", parts, " parts");
  visit<float, bf16>(qkv.dtype, [&]<class T>() {
    Params<T> p{qkv.ptr<T>(), a.kv.k.ptr<T>(), a.kv.v.ptr<T>(), o.ptr<T>(), a.position.ptr<int32_t>()};
    p.width = qkv.cols(), p.S = S, p.k0 = h.k(0), p.v0 = h.v(0), p.kv_step = h.k(1) - h.k(0), p.q_step = h.q(1);
    p.H = int(h.H), p.G = int(h.G), p.D = int(h.D), p.group = int(h.H / h.G), p.parts = int(parts);
    p.window = int(a.window);
    p.scale = float(a.scale * 1.4426950408889634);
    p.done = static_cast<uint32_t*>(a.workspace.data);
    p.sums = reinterpret_cast<float*>(static_cast<char*>(a.workspace.data) + decode_counters(h, B));
    p.stats = p.sums + sums;
    if (rope_table) p.table = rope_table.ptr<float>(), p.half = int(rope_table.shape[1]);
    p.cache_ready = a.cache_ready && rope_table;  // without a table, kv_append just ahead has written the newest keys
    if constexpr (sizeof(T) == 2)
      if (h.D <= 128) return launch_bf16(s, p, B);
    launch_plain(s, p, B);
  });
}

__global__ void advance_kernel(int32_t* position, int count) {
  grid_dependency_trigger();
  grid_dependency_wait();
  for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) ++position[i];
}

}  // namespace

void attention_decode(Stream& s, Tensor o, Tensor qkv, const DecodeAttention& a) { attend(s, o, qkv, {}, a); }

void attention_step(Stream& s, Tensor o, Tensor qkv, Tensor rope_table, const DecodeAttention& a) {
  if (rope_table.shape[1] % 8 == 0 && aligned({rope_table.data})) return attend(s, o, qkv, rope_table, a);
  rope_forward(s, qkv, {.table = rope_table, .heads = a.heads, .start = a.position});  // R/2 is not a multiple of 8
  kv_append(s, {.kv = a.kv, .heads = a.heads, .start = a.position}, qkv);
  attention_decode(s, o, qkv, a);
}

void advance(Stream& s, Tensor position) {
  const Timed timed(s, Kernel::elementwise);
  launch_pdl(s, advance_kernel, {1, 256}, position.ptr<int32_t>(), int(position.numel()));
}

void argmax(Stream& s, Tensor index, Tensor largest, Tensor x, int64_t vocabulary) {
  const Timed timed(s, Kernel::loss);
  CHECK(index.numel() == x.rows() && largest.numel() == x.rows(), index.shape, " of ", x.shape);
  CHECK(vocabulary > 0 && vocabulary <= x.cols(), vocabulary, " of ", x.shape);
  if (x.rows() == 0) return;
  argmax_kernel<<<unsigned(x.rows()), 1024, 0, raw(s)>>>(index.ptr<int32_t>(), largest.ptr<float>(), x.ptr<float>(),
                                                         x.cols(), int(vocabulary));
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace octet::BACKEND
