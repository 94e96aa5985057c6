// Attention with fp32 storage in fp32 arithmetic, for verification: tiles of 32 x 32 scores (16 x 16 where shared
// memory is too small for those), eight threads a row, memory linear in T. Thread x of a row holds its score columns x,
// x + 8, ... and the elements x, x + 8, ... of its sums.
#include "ops/gpu/attention_common.cuh"
#include "ops/gpu/attention_kernels.h"

namespace octet::BACKEND {
namespace {

constexpr int kLargestD = 256, kElements = kLargestD / 8;
template <int kTile>
constexpr int kThreads = 8 * kTile;

struct Params {
  const float *qkv, *d_o, *o_in;
  float *o, *lse, *delta, *dqkv;
  int64_t width, q_step, kv_step, k0, v0, out_width;
  int H, G, T, D;
  Mask mask;
  float scale;
  __device__ int pitch() const { return D + 1; }  // D is a multiple of 8: rows start in different banks
};

template <int kTile>
__device__ void load(const Params& p, float* tile, const float* src, int64_t stride, int valid_rows) {
  for (int i = int(threadIdx.x); i < kTile * p.D; i += kThreads<kTile>) {
    const int row = i / p.D, d = i % p.D;
    tile[row * p.pitch() + d] = row < valid_rows ? src[row * stride + d] : 0;
  }
}
// s[i] = x[r] . y[x + 8 i]
template <int kColumns>
__device__ void scores(const Params& p, float (&s)[kColumns], const float* x, const float* y) {
  const int r = int(threadIdx.x) / 8, c = int(threadIdx.x) % 8;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) s[i] = 0;
  for (int d = 0; d < p.D; ++d)
#pragma unroll
    for (int i = 0; i < kColumns; ++i) s[i] = fmaf(x[r * p.pitch() + d], y[(c + 8 * i) * p.pitch() + d], s[i]);
}
// sum[i] += sum over the tile's columns of s[r][column] * y[column][x + 8 i]; the threads of a row exchange s through
// shared_s
template <int kColumns>
__device__ void accumulate(const Params& p, float (&sum)[kElements], const float (&s)[kColumns], const float* y,
                           float* shared_s) {
  const int r = int(threadIdx.x) / 8, x = int(threadIdx.x) % 8;
  constexpr int kTile = 8 * kColumns;
  float* row = shared_s + r * (kTile + 1);
  __syncwarp();  // the eight threads of a row are in one warp
#pragma unroll
  for (int i = 0; i < kColumns; ++i) row[x + 8 * i] = s[i];
  __syncwarp();
  for (int c = 0; c < kTile; ++c)
#pragma unroll
    for (int i = 0; i < kElements; ++i)
      if (8 * i < p.D) sum[i] = fmaf(row[c], y[c * p.pitch() + x + 8 * i], sum[i]);
}
__device__ float row_sum(float v) {
  for (int i = 4; i > 0; i /= 2) v += __shfl_xor_sync(~0u, v, i);
  return v;
}
__device__ float row_max(float v) {
  for (int i = 4; i > 0; i /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, i));
  return v;
}

struct Place {  // of a thread: blockIdx.x is the tile of rows, blockIdx.y the head, blockIdx.z the sequence
  int b, row0, r, x, row;
  int64_t sequence;  // its first row
  __device__ Place(const Params& p, int tile)
      : b(int(blockIdx.z)),
        row0(int(blockIdx.x) * tile),
        r(int(threadIdx.x) / 8),
        x(int(threadIdx.x) % 8),
        row(row0 + r),
        sequence(int64_t(b) * p.T) {}
};

template <int kTile>
__global__ void __launch_bounds__(kThreads<kTile>) forward_f32(const Params p) {
  constexpr int kColumns = kTile / 8;
  extern __shared__ float memory[];
  float *q = memory, *k = q + kTile * p.pitch(), *v = k + kTile * p.pitch(), *shared_s = v + kTile * p.pitch();
  const Place at(p, kTile);
  const int h = int(blockIdx.y), g = h / (p.H / p.G);
  load<kTile>(p, q, p.qkv + (at.sequence + at.row0) * p.width + h * p.q_step, p.width, p.T - at.row0);
  const Span seen = p.mask.keys_of(at.b, at.row);
  float maximum = -INFINITY, sum = 0, o[kElements] = {};
  for (int key = p.mask.keys_of(at.b, at.row0).begin / kTile * kTile; key <= min(at.row0 + kTile, p.T) - 1;
       key += kTile) {
    const float* keys = p.qkv + (at.sequence + key) * p.width + g * p.kv_step;
    __syncthreads();
    load<kTile>(p, k, keys + p.k0, p.width, p.T - key), load<kTile>(p, v, keys + p.v0, p.width, p.T - key);
    __syncthreads();
    float s[kColumns], top = maximum, part = 0;
    scores(p, s, q, k);
    for (int i = 0; i < kColumns; ++i) {
      s[i] = seen.contains(key + at.x + 8 * i) ? s[i] * p.scale : -INFINITY;
      top = fmaxf(top, s[i]);
    }
    top = row_max(top);
    const float base = top == -INFINITY ? 0 : top, shrink = expf(maximum - base);
    maximum = top;
    for (int i = 0; i < kColumns; ++i) part += s[i] = expf(s[i] - base);
    sum = sum * shrink + row_sum(part);
    for (int i = 0; i < kElements; ++i) o[i] *= shrink;
    accumulate(p, o, s, v, shared_s);
  }
  if (at.row >= p.T) return;
  for (int i = 0; i < kElements; ++i)
    if (8 * i < p.D) p.o[(at.sequence + at.row) * p.out_width + h * p.D + at.x + 8 * i] = o[i] / sum;
  if (at.x == 0) p.lse[(int64_t(at.b) * p.H + h) * p.T + at.row] = maximum + logf(sum);
}

template <int kTile>
__global__ void __launch_bounds__(kThreads<kTile>) dq_f32(const Params p) {
  constexpr int kColumns = kTile / 8;
  extern __shared__ float memory[];
  const int size = kTile * p.pitch();
  float *q = memory, *d_o = q + size, *k = d_o + size, *v = k + size, *shared_s = v + size;
  const Place at(p, kTile);
  const int h = int(blockIdx.y), g = h / (p.H / p.G);
  const int64_t out = (at.sequence + at.row0) * p.out_width + h * p.D;
  load<kTile>(p, q, p.qkv + (at.sequence + at.row0) * p.width + h * p.q_step, p.width, p.T - at.row0);
  load<kTile>(p, d_o, p.d_o + out, p.out_width, p.T - at.row0);
  __syncthreads();
  float delta = 0, lse = 0, dq[kElements] = {};
  const int64_t statistic = (int64_t(at.b) * p.H + h) * p.T + at.row;
  if (at.row < p.T) {
    for (int d = at.x; d < p.D; d += 8)
      delta = fmaf(d_o[at.r * p.pitch() + d], p.o_in[out + at.r * p.out_width + d], delta);
    lse = p.lse[statistic];
  }
  delta = row_sum(delta);
  const Span seen = p.mask.keys_of(at.b, at.row);
  if (at.row < p.T && at.x == 0) p.delta[statistic] = delta;
  for (int key = p.mask.keys_of(at.b, at.row0).begin / kTile * kTile; key <= min(at.row0 + kTile, p.T) - 1;
       key += kTile) {
    const float* keys = p.qkv + (at.sequence + key) * p.width + g * p.kv_step;
    __syncthreads();
    load<kTile>(p, k, keys + p.k0, p.width, p.T - key), load<kTile>(p, v, keys + p.v0, p.width, p.T - key);
    __syncthreads();
    float s[kColumns], dp[kColumns];
    scores(p, s, q, k), scores(p, dp, d_o, v);
    for (int i = 0; i < kColumns; ++i)
      s[i] = seen.contains(key + at.x + 8 * i) ? expf(s[i] * p.scale - lse) * (dp[i] - delta) * p.scale : 0;
    accumulate(p, dq, s, k, shared_s);
  }
  if (at.row >= p.T) return;
  for (int i = 0; i < kElements; ++i)
    if (8 * i < p.D) p.dqkv[(at.sequence + at.row) * p.width + h * p.q_step + at.x + 8 * i] = dq[i];
}

// Here rows are keys, and columns are the queries of every query head of the group.
template <int kTile>
__global__ void __launch_bounds__(kThreads<kTile>) dkv_f32(const Params p) {
  constexpr int kColumns = kTile / 8;
  extern __shared__ float memory[];
  const int size = kTile * p.pitch();
  float *q = memory, *d_o = q + size, *k = d_o + size, *v = k + size, *shared_s = v + size;
  const Place at(p, kTile);
  const int g = int(blockIdx.y), group = p.H / p.G;
  const float* keys = p.qkv + (at.sequence + at.row0) * p.width + g * p.kv_step;
  load<kTile>(p, k, keys + p.k0, p.width, p.T - at.row0), load<kTile>(p, v, keys + p.v0, p.width, p.T - at.row0);
  float dk[kElements] = {}, dv[kElements] = {};
  const Span seen = p.mask.queries_of(at.b, at.row);
  const int end = min(p.T, p.mask.queries_of(at.b, at.row0 + kTile - 1).end);
  for (int h = g * group; h < (g + 1) * group; ++h)
    for (int query = at.row0; query < end; query += kTile) {
      __syncthreads();
      load<kTile>(p, q, p.qkv + (at.sequence + query) * p.width + h * p.q_step, p.width, p.T - query);
      load<kTile>(p, d_o, p.d_o + (at.sequence + query) * p.out_width + h * p.D, p.out_width, p.T - query);
      __syncthreads();
      float s[kColumns], dp[kColumns];
      scores(p, s, k, q), scores(p, dp, v, d_o);
      for (int i = 0; i < kColumns; ++i) {
        const int column = query + at.x + 8 * i;
        const int64_t statistic = (int64_t(at.b) * p.H + h) * p.T + column;
        const bool attends = column < p.T && seen.contains(column);
        s[i] = attends ? expf(s[i] * p.scale - p.lse[statistic]) : 0;
        dp[i] = attends ? s[i] * (dp[i] - p.delta[statistic]) * p.scale : 0;
      }
      accumulate(p, dv, s, d_o, shared_s);
      accumulate(p, dk, dp, q, shared_s);
    }
  if (at.row >= p.T) return;
  float* y = p.dqkv + (at.sequence + at.row) * p.width + g * p.kv_step + at.x;
  for (int i = 0; i < kElements; ++i)
    if (8 * i < p.D) y[p.k0 + 8 * i] = dk[i], y[p.v0 + 8 * i] = dv[i];
}

Params params(const Attention& a) {
  const Heads& h = a.heads;
  Params p{};
  p.width = h.width(), p.q_step = h.q(1), p.kv_step = h.k(1) - h.k(0), p.k0 = h.k(0), p.v0 = h.v(0);
  p.out_width = h.H * h.D, p.H = int(h.H), p.G = int(h.G), p.T = int(a.T), p.D = int(h.D);
  p.mask = mask_of(a), p.scale = float(a.scale);
  return p;
}
int64_t shared_bytes(int tile, int tiles, int D) {
  return int64_t(sizeof(float)) * tile * (tiles * (D + 1) + tile + 1);
}

template <int kTile>
void launch(void (*kernel)(Params), Stream& s, const Attention& a, int64_t heads, int tiles, const Params& p) {
  const int64_t bytes = shared_bytes(kTile, tiles, p.D);
  CHECK(bytes <= shared_room(s.target().compute_capability), bytes, " bytes of shared memory");
  CHECK(heads < 65536 && a.B < 65536, heads, " heads of ", a.B, " sequences: a grid has less than 65536 of either");
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
  kernel<<<dim3(unsigned((a.T + kTile - 1) / kTile), unsigned(heads), unsigned(a.B)), kThreads<kTile>, size_t(bytes),
           raw(s)>>>(p);
  CUDA_CHECK(cudaGetLastError());
}
template <class F>
void with_tile(const Stream& s, int tiles, int D, F&& f) {
  if (shared_bytes(32, tiles, D) <= shared_room(s.target().compute_capability)) f.template operator()<32>();
  else f.template operator()<16>();
}

}  // namespace

void attention_forward_f32(Stream& s, const AttentionForward& t, const Attention& a) {
  Params p = params(a);
  p.qkv = t.qkv.ptr<float>(), p.o = t.o.ptr<float>(), p.lse = t.lse.ptr<float>();
  with_tile(s, 3, p.D, [&]<int kTile>() { launch<kTile>(forward_f32<kTile>, s, a, a.heads.H, 3, p); });
}

void attention_backward_f32(Stream& s, const AttentionBackward& t, const Attention& a) {
  Params p = params(a);
  p.qkv = t.qkv.ptr<float>(), p.d_o = t.d_o.ptr<float>(), p.o_in = t.o.ptr<float>(), p.lse = t.lse.ptr<float>();
  p.dqkv = t.dqkv.ptr<float>(), p.delta = static_cast<float*>(t.workspace.data);
  with_tile(s, 4, p.D, [&]<int kTile>() {
    launch<kTile>(dq_f32<kTile>, s, a, a.heads.H, 4, p);
    launch<kTile>(dkv_f32<kTile>, s, a, a.heads.G, 4, p);
  });
}

}  // namespace octet::BACKEND
