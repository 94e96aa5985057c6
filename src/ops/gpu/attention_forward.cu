// Attention forward in bf16 by mma.sync (FlashAttention-2): a thread block takes a tile of query rows of one head and
// streams the keys and values in double-buffered tiles, with a running maximum and sum for each row. Scores are in base
// 2: p = 2^(s * scale * log2(e) - row maximum).
#include "ops/gpu/attention_kernels.h"
#include "ops/gpu/attention_tiles.cuh"

namespace octet::BACKEND {
namespace {

struct Forward {
  bf16* o;          // (B*T, H*D)
  float* lse;       // (B, H, T)
  const bf16* qkv;  // (B*T, width)
  QkvLayout layout;
  Schedule schedule;
  Mask mask;
  int H, group, T, D;
  float scale;  // of base-2 scores
};

// Online softmax of the 16 kM rows of a warp; a lane has 2 kM rows, and a partial sum of each.
template <int kM>
struct RunningSoftmax {
  float maximum[kM][2], sum[kM][2];
  __device__ RunningSoftmax() {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) maximum[i / 2][i % 2] = -INFINITY, sum[i / 2][i % 2] = 0;
  }
  // s becomes p, o is rescaled to the new maximum. The maximum of a row that has seen masked keys only is -inf.
  template <int kN, int kO>
  __device__ void step(float (&s)[kM][kN][4], float (&o)[kM][kO][4], float scale) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = maximum[m][half];
#pragma unroll
        for (int n = 0; n < kN; ++n) top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float base = top == -INFINITY ? 0 : top * scale;
        const float shrink = exp2_approx(maximum[m][half] * scale - base);
        maximum[m][half] = top;
        float part = 0;
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            s[m][n][i] = exp2_approx(fmaf(s[m][n][i], scale, -base));
            part += s[m][n][i];
          }
        sum[m][half] = sum[m][half] * shrink + part;
#pragma unroll
        for (int n = 0; n < kO; ++n) o[m][n][2 * half] *= shrink, o[m][n][2 * half + 1] *= shrink;
      }
  }
  __device__ void finish() {  // sums over the quad
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[m][half] += __shfl_xor_sync(~0u, sum[m][half], 1);
        sum[m][half] += __shfl_xor_sync(~0u, sum[m][half], 2);
      }
  }
};

// kD: padded head size; kKeys: keys of a tile; kM: a warp has 16 kM rows; kKeepQ: q stays in registers; kBlocks: thread
// blocks an SM
template <int kD_, int kKeys_, int kWarps_, int kM_, bool kKeepQ_, int kBlocks_>
struct Form {
  static constexpr int kD = kD_, kKeys = kKeys_, kWarps = kWarps_, kM = kM_, kBlocks = kBlocks_;
  static constexpr bool kKeepQ = kKeepQ_;
  static constexpr int kThreads = kWarps * 32, kRows = kWarps * kM * 16;
  static constexpr int kQBytes = kRows * kRowBytes<kD>, kKeyBytes = kKeys * kRowBytes<kD>;
  static constexpr int kSharedBytes = kQBytes + 4 * kKeyBytes;  // q; two stages of k and v
};

template <class F>
__global__ void __launch_bounds__(F::kThreads, F::kBlocks) forward_kernel(const __grid_constant__ Forward p) {
  constexpr int kD = F::kD, kM = F::kM, kKeys = F::kKeys, kThreads = F::kThreads;
  extern __shared__ __align__(1024) char shared[];
  const uint32_t tile_q = shared_address(shared), stages = tile_q + F::kQBytes;
  int tile, head;
  p.schedule.pick(int(blockIdx.x), &tile, &head);
  const int b = head / p.H, h = head % p.H, row0 = tile * F::kRows, last_row = min(row0 + F::kRows, p.T) - 1;
  const int first = p.mask.keys_of(b, row0).begin / kKeys, last = last_row / kKeys;  // tiles of keys
  const bf16* sequence = p.qkv + int64_t(b) * p.T * p.layout.width;
  const bf16* keys = sequence + p.layout.k0 + h / p.group * p.layout.kv_step;
  const int64_t to_values = p.layout.v0 - p.layout.k0, width = p.layout.width;
  auto load = [&](int j) {  // keys and values of tile j
    const uint32_t stage = stages + (j & 1) * 2 * F::kKeyBytes;
    const bf16* k = keys + int64_t(j) * kKeys * width;
    load_tile<kD, kKeys, kThreads>(stage, k, width, p.T - j * kKeys, p.D);
    load_tile<kD, kKeys, kThreads>(stage + F::kKeyBytes, k + to_values, width, p.T - j * kKeys, p.D);
    copies_commit();
  };
  load_tile<kD, F::kRows, kThreads>(tile_q, sequence + h * p.layout.q_step + row0 * width, width, p.T - row0, p.D);
  load(last);

  const int warp_row = int(threadIdx.x) / 32 * kM * 16;
  const Attended seen = p.mask.columns_of_tile<Rows::queries>(b, row0 + warp_row, kM * 16);
  RowFragments<kD, kM, F::kKeepQ> q(tile_q, warp_row);
  RunningSoftmax<kM> softmax;
  float o[kM][kD / 8][4] = {};
  for (int j = last; j >= first; --j) {  // the diagonal first
    copies_wait<0>();
    __syncthreads();  // tile j has arrived; all warps are done with j + 1, whose place j - 1 takes
    if (j > first) load(j - 1);
    if (j == last) q.load();
    if (seen.none(j * kKeys, kKeys)) continue;
    const uint32_t stage = stages + (j & 1) * 2 * F::kKeyBytes;
    float s[kM][kKeys / 8][4];
    product_nt<kD>(s, q, lane_address<kD>(stage, 0));
    if (!seen.all(j * kKeys, kKeys)) apply<Rows::queries>(p.mask, s, b, row0 + warp_row, j * kKeys);
    softmax.step(s, o, p.scale);
    product_nn<kD>(o, s, lane_address<kD>(stage + F::kKeyBytes, 0), 0);
  }
  softmax.finish();
  const int lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + warp_row + m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && row < p.T)
        p.lse[int64_t(head) * p.T + row] = softmax.maximum[m][half] * p.scale * kLn2 + logf(softmax.sum[m][half]);
    }
  bf16* y = p.o + (int64_t(b) * p.T + row0) * p.H * p.D + h * p.D;
  store_rows<kD>(
      o, [&](int m, int half) { return 1 / softmax.sum[m][half]; }, tile_q, warp_row, y, int64_t(p.H) * p.D, p.T - row0,
      p.D);
}

template <class F>
void run(Stream& s, const AttentionForward& t, const Attention& a) {
  const Heads& heads = a.heads;
  Forward p{t.o.ptr<bf16>(),
            t.lse.ptr<float>(),
            t.qkv.ptr<bf16>(),
            QkvLayout(heads),
            schedule(a.T, F::kRows, a.B * heads.H, a.T * heads.D * 4 * heads.G / heads.H, true),
            mask_of(a)};
  p.H = int(heads.H), p.group = int(heads.H / heads.G), p.T = int(a.T), p.D = int(heads.D);
  p.scale = float(a.scale) * kLog2e;
  launch(forward_kernel<F>, p.schedule.blocks(), F::kThreads, F::kSharedBytes, s, p);
}

}  // namespace

void attention_forward_bf16(Stream& s, const AttentionForward& t, const Attention& a) {
  const int64_t D = a.heads.D;
  if (D <= 64) run<Form<64, 64, 4, 2, true, 2>>(s, t, a);
  else if (D <= 96) run<Form<96, 64, 4, 2, false, 2>>(s, t, a);
  else if (D <= 128) run<Form<128, 32, 4, 2, false, 2>>(s, t, a);
  else
    first_that_fits<Form<256, 32, 8, 1, false, 1>, Form<256, 16, 8, 1, false, 1>>(s,
                                                                                  [&]<class F>() { run<F>(s, t, a); });
}

}  // namespace octet::BACKEND
