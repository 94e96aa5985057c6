// dq = scale * sum over keys of p (dp - delta) k,  and delta = rowsum(do * o), for the kernel of dk and dv.
#include "ops/gpu/attention_backward.cuh"

namespace octet::BACKEND {
namespace {

// kKeys: keys of a tile, of which kStep are taken at a time; kKeep: q and do stay in registers
template <int kD_, int kKeys_, int kStep_, int kWarps_, int kM_, bool kKeep_, int kBlocks_>
struct Form {
  static constexpr int kD = kD_, kKeys = kKeys_, kStep = kStep_, kWarps = kWarps_, kM = kM_, kBlocks = kBlocks_;
  static constexpr bool kKeep = kKeep_;
  static constexpr int kThreads = kWarps * 32, kRows = kWarps * kM * 16;
  static constexpr int kRowTileBytes = kRows * kRowBytes<kD>, kKeyBytes = kKeys * kRowBytes<kD>;
  static constexpr int kSharedBytes = 2 * kRowTileBytes + 4 * kKeyBytes;  // q, do; two stages of k and v
};

// rowsum(x * y) of a row, by the quad of lanes that holds it
__device__ float row_dot(const bf16* x, const bf16* y, int D) {
  float sum = 0;
  for (int c = int(threadIdx.x) % 4 * 8; c < D; c += 32) {
    const uint4 u = *reinterpret_cast<const uint4*>(x + c), v = *reinterpret_cast<const uint4*>(y + c);
    sum = add_products(sum, u, v);
  }
  return quad_sum(sum);
}

// s becomes ds / scale = p (dp - delta)
template <int kM, int kN>
__device__ void score_gradient(float (&s)[kM][kN][4], const float (&dp)[kM][kN][4], const float (&lse)[kM][2],
                               const float (&delta)[kM][2], float scale) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[m][n][i] = exp2_approx(fmaf(s[m][n][i], scale, -lse[m][i / 2])) * (dp[m][n][i] - delta[m][i / 2]);
}
template <class F>
__global__ void __launch_bounds__(F::kThreads, F::kBlocks) dq_kernel(const __grid_constant__ BackwardParams p) {
  constexpr int kD = F::kD, kM = F::kM, kKeys = F::kKeys, kStep = F::kStep, kThreads = F::kThreads;
  extern __shared__ __align__(1024) char shared[];
  const uint32_t tile_q = shared_address(shared), tile_do = tile_q + F::kRowTileBytes,
                 stages = tile_do + F::kRowTileBytes;
  int tile, head;
  p.schedule.pick(int(blockIdx.x), &tile, &head);
  const int b = head / p.H, h = head % p.H, row0 = tile * F::kRows, last_row = min(row0 + F::kRows, p.T) - 1;
  const int first = p.mask.keys_of(b, row0).begin / kKeys, last = last_row / kKeys;  // tiles of keys
  const int64_t width = p.layout.width, out_width = int64_t(p.H) * p.D;
  const int64_t q_at = (int64_t(b) * p.T + row0) * width + h * p.layout.q_step;
  const int64_t o_at = (int64_t(b) * p.T + row0) * out_width + h * p.D;
  const bf16* keys = p.qkv + int64_t(b) * p.T * width + p.layout.k0 + h / (p.H / p.G) * p.layout.kv_step;
  const int64_t to_values = p.layout.v0 - p.layout.k0;
  auto load = [&](int j) {  // keys and values of tile j
    const uint32_t stage = stages + (j & 1) * 2 * F::kKeyBytes;
    const bf16* k = keys + int64_t(j) * kKeys * width;
    load_tile<kD, kKeys, kThreads>(stage, k, width, p.T - j * kKeys, p.D);
    load_tile<kD, kKeys, kThreads>(stage + F::kKeyBytes, k + to_values, width, p.T - j * kKeys, p.D);
    copies_commit();
  };
  load_tile<kD, F::kRows, kThreads>(tile_q, p.qkv + q_at, width, p.T - row0, p.D);
  load_tile<kD, F::kRows, kThreads>(tile_do, p.d_o + o_at, out_width, p.T - row0, p.D);
  load(last);

  const int lane = int(threadIdx.x) % 32, warp_row = int(threadIdx.x) / 32 * kM * 16;
  float lse[kM][2], delta[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + m * 16 + half * 8 + lane / 4, inside = min(row, p.T - 1 - row0);
      const int64_t at = int64_t(head) * p.T + row0 + inside;
      lse[m][half] = p.lse[at] * kLog2e;
      delta[m][half] = row_dot(p.d_o + o_at + inside * out_width, p.o + o_at + inside * out_width, p.D);
      if (lane % 4 == 0 && row == inside) p.delta[at] = delta[m][half];
    }
  RowFragments<kD, kM, F::kKeep> q(tile_q, warp_row), d_o(tile_do, warp_row);
  const Attended seen = p.mask.columns_of_tile<Rows::queries>(b, row0 + warp_row, kM * 16);
  const float scale = p.scale * kLog2e;
  float dq[kM][kD / 8][4] = {};
  for (int j = last; j >= first; --j) {
    copies_wait<0>();
    __syncthreads();  // tile j has arrived; all warps are done with j + 1, whose place j - 1 takes
    if (j > first) load(j - 1);
    if (j == last) q.load(), d_o.load();
    const uint32_t stage = stages + (j & 1) * 2 * F::kKeyBytes;
    const uint32_t k_lane = lane_address<kD>(stage, 0), v_lane = k_lane + F::kKeyBytes;
#pragma unroll
    for (int step = 0; step < kKeys; step += kStep) {
      const int column = j * kKeys + step;
      const uint32_t to_step = step * kRowBytes<kD>;
      if (seen.none(column, kStep)) continue;
      float s[kM][kStep / 8][4], dp[kM][kStep / 8][4];
      product_nt<kD>(s, q, k_lane + to_step);
      product_nt<kD>(dp, d_o, v_lane + to_step);
      score_gradient(s, dp, lse, delta, scale);
      if (!seen.all(column, kStep)) apply<Rows::queries>(p.mask, s, b, row0 + warp_row, column, 0.f);
      product_nn<kD>(dq, s, k_lane + to_step, 0);
    }
  }
  store_rows<kD>(
      dq, [&](int, int) { return p.scale; }, tile_q, warp_row, p.dqkv + q_at, width, p.T - row0, p.D);
}

template <class F>
void run(Stream& s, const AttentionBackward& t, const Attention& a) {
  const Heads& heads = a.heads;
  const auto p = backward_params(
      t, a, schedule(a.T, F::kRows, a.B * heads.H, a.T * heads.D * 4 * heads.G / heads.H, /*longest_last=*/true));
  launch(dq_kernel<F>, p.schedule.blocks(), F::kThreads, F::kSharedBytes, s, p);
}

}  // namespace

void attention_backward_q_bf16(Stream& s, const AttentionBackward& t, const Attention& a) {
  const int64_t D = a.heads.D;
  const auto form = [&]<class F>() { run<F>(s, t, a); };
  if (D <= 64) run<Form<64, 64, 16, 4, 2, true, 2>>(s, t, a);
  else if (D <= 96) run<Form<96, 32, 32, 4, 2, false, 2>>(s, t, a);
  else if (D <= 128) run<Form<128, 64, 64, 4, 1, false, 2>>(s, t, a);
  else
    first_that_fits<Form<256, 32, 32, 8, 1, false, 1>, Form<256, 32, 16, 4, 1, false, 1>,
                    Form<256, 16, 16, 4, 1, false, 1>>(s, form);
}

}  // namespace octet::BACKEND
