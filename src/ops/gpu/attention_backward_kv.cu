// dk = scale * sum over queries of p (dp - delta) q,  dv = sum of p do: a thread block takes a tile of keys and streams
// the query tiles of every query head that reads them, so that the sum over a group of heads is in registers. Scores
// are computed transposed (keys are the rows): p and ds then already have the layout of left factors.
#include "ops/gpu/attention_backward.cuh"

namespace octet::BACKEND {
namespace {

// kQueries: queries of a tile, of which kStep are taken at a time; kKeep: k and v stay in registers; kSplit: a block
// computes a kSplit-th of the columns of dk and dv, where all of them are too many for its registers
template <int kD_, int kQueries_, int kStep_, int kWarps_, int kM_, bool kKeep_, int kSplit_, int kBlocks_>
struct Form {
  static constexpr int kD = kD_, kQueries = kQueries_, kStep = kStep_, kWarps = kWarps_, kM = kM_, kSplit = kSplit_,
                       kBlocks = kBlocks_;
  static constexpr bool kKeep = kKeep_;
  static constexpr int kThreads = kWarps * 32, kRows = kWarps * kM * 16;
  static constexpr int kRowTileBytes = kRows * kRowBytes<kD>, kQueryBytes = kQueries * kRowBytes<kD>;
  static constexpr int kStageBytes = 2 * kQueryBytes;  // q and do
  // where k and v stay in registers, they pass through the memory of the stages
  static constexpr int kTileBytes =
      kKeep ? std::max(2 * kStageBytes, 2 * kRowTileBytes) : 2 * kStageBytes + 2 * kRowTileBytes;
  static constexpr int kSharedBytes = kTileBytes + 4 * kQueries * 4;  // two stages of lse and delta
};

// s^T becomes p^T, dp^T becomes ds^T / scale. lse and delta (shared memory) belong to columns.
template <int kM, int kN>
__device__ void score_gradient(float (&s)[kM][kN][4], float (&dp)[kM][kN][4], const float* lse, const float* delta,
                               float scale) {
  const int column = int(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const float2 l = *reinterpret_cast<const float2*>(lse + n * 8 + column);
    const float2 d = *reinterpret_cast<const float2*>(delta + n * 8 + column);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[m][n][i] = exp2_approx(fmaf(s[m][n][i], scale, (i % 2 ? l.y : l.x) * -kLog2e));
        dp[m][n][i] = s[m][n][i] * (dp[m][n][i] - (i % 2 ? d.y : d.x));
      }
  }
}
template <class F>
__global__ void __launch_bounds__(F::kThreads, F::kBlocks) dkv_kernel(const __grid_constant__ BackwardParams p) {
  constexpr int kD = F::kD, kM = F::kM, kQueries = F::kQueries, kStep = F::kStep, kThreads = F::kThreads;
  extern __shared__ __align__(1024) char shared[];
  const uint32_t stages = shared_address(shared);
  const uint32_t tile_k = F::kKeep ? stages : stages + 2 * F::kStageBytes, tile_v = tile_k + F::kRowTileBytes;
  float* const rows = reinterpret_cast<float*>(shared + F::kTileBytes);  // [stage][lse, delta][kQueries]
  int tile, head;
  p.schedule.pick(int(blockIdx.x) / F::kSplit, &tile, &head);
  const int part = int(blockIdx.x) % F::kSplit, group = p.H / p.G;
  const int b = head / p.G, g = head % p.G, row0 = tile * F::kRows;
  const int first = row0 / kQueries;  // tiles of queries, the same for every head of the group
  const int tiles = (min(p.T, p.mask.queries_of(b, row0 + F::kRows - 1).end) - 1) / kQueries - first + 1;
  const int64_t width = p.layout.width, out_width = int64_t(p.H) * p.D, sequence = int64_t(b) * p.T;
  const int64_t k_at = (sequence + row0) * width + p.layout.k0 + g * p.layout.kv_step;
  const int64_t v_at = k_at + p.layout.v0 - p.layout.k0;
  auto load = [&](int i) {  // q, do, lse and delta of the i-th tile
    const int h = g * group + i / tiles, query0 = (first + i % tiles) * kQueries, valid = p.T - query0;
    const uint32_t stage = stages + (i & 1) * F::kStageBytes;
    load_tile<kD, kQueries, kThreads>(stage, p.qkv + (sequence + query0) * width + h * p.layout.q_step, width, valid,
                                      p.D);
    load_tile<kD, kQueries, kThreads>(stage + F::kQueryBytes, p.d_o + (sequence + query0) * out_width + h * p.D,
                                      out_width, valid, p.D);
    const int64_t at = (int64_t(b) * p.H + h) * p.T + query0;
    for (int r = int(threadIdx.x); r < 2 * kQueries; r += kThreads) {  // zeros beyond T: with q = do = 0, ds = 0
      const int query = r % kQueries;
      const float* src = (r < kQueries ? p.lse : p.delta) + at;
      copy_async<4>(shared_address(rows + (i & 1) * 2 * kQueries + r), src + min(query, valid - 1), query < valid);
    }
    copies_commit();
  };
  const int warp_row = int(threadIdx.x) / 32 * kM * 16, n_tiles = group * tiles;
  load_tile<kD, F::kRows, kThreads>(tile_k, p.qkv + k_at, width, p.T - row0, p.D);
  load_tile<kD, F::kRows, kThreads>(tile_v, p.qkv + v_at, width, p.T - row0, p.D);
  copies_commit();
  RowFragments<kD, kM, F::kKeep> k(tile_k, warp_row), v(tile_v, warp_row);
  if (F::kKeep) {
    copies_wait<0>();
    __syncthreads();
    k.load(), v.load();
    __syncthreads();  // all warps have read k and v, whose place the stages take
  }
  load(0);

  const Attended seen = p.mask.columns_of_tile<Rows::keys>(b, row0 + warp_row, kM * 16);
  constexpr int kColumns = kD / F::kSplit;
  float dk[kM][kColumns / 8][4] = {}, dv[kM][kColumns / 8][4] = {};
  for (int i = 0; i < n_tiles; ++i) {
    copies_wait<0>();
    __syncthreads();  // tile i has arrived; all warps are done with i - 1, whose place i + 1 takes
    if (i + 1 < n_tiles) load(i + 1);
    const uint32_t q_lane = lane_address<kD>(stages + (i & 1) * F::kStageBytes, 0), do_lane = q_lane + F::kQueryBytes;
    const float* lse = rows + (i & 1) * 2 * kQueries;
#pragma unroll
    for (int step = 0; step < kQueries; step += kStep) {
      const int query0 = (first + i % tiles) * kQueries + step;
      const uint32_t to_step = step * kRowBytes<kD>;
      if (seen.none(query0, kStep)) continue;
      float s[kM][kStep / 8][4], dp[kM][kStep / 8][4];
      product_nt<kD>(s, k, q_lane + to_step);
      product_nt<kD>(dp, v, do_lane + to_step);
      if (!seen.all(query0, kStep)) apply<Rows::keys>(p.mask, s, b, row0 + warp_row, query0);
      score_gradient(s, dp, lse + step, lse + kQueries + step, p.scale * kLog2e);
      product_nn<kD>(dv, s, do_lane + to_step, part * kColumns / 16);
      product_nn<kD>(dk, dp, q_lane + to_step, part * kColumns / 16);
    }
  }
  __syncthreads();  // the results leave through the memory of the stages
  constexpr int kChunks = kColumns / 8;
  const int64_t valid = p.T - row0;
  store_rows<kD>(
      dk, [&](int, int) { return p.scale; }, stages, warp_row, p.dqkv + k_at, width, valid, p.D, part * kChunks);
  store_rows<kD>(
      dv, [](int, int) { return 1.f; }, stages, warp_row, p.dqkv + v_at, width, valid, p.D, part * kChunks);
}

template <class F>
void run(Stream& s, const AttentionBackward& t, const Attention& a) {
  const Heads& heads = a.heads;
  static_assert(F::kTileBytes >= F::kRowTileBytes);
  const auto p = backward_params(t, a,
                                 schedule(a.T, F::kRows, a.B * heads.G, a.T * heads.D * 4 * heads.H / heads.G,
                                          /*longest_last=*/false));
  launch(dkv_kernel<F>, p.schedule.blocks() * F::kSplit, F::kThreads, F::kSharedBytes, s, p);
}

}  // namespace

void attention_backward_kv_bf16(Stream& s, const AttentionBackward& t, const Attention& a) {
  const int64_t D = a.heads.D;
  const auto form = [&]<class F>() { run<F>(s, t, a); };
  if (D <= 64) run<Form<64, 64, 32, 4, 2, false, 1, 2>>(s, t, a);
  else if (D <= 96) run<Form<96, 64, 32, 8, 1, true, 1, 1>>(s, t, a);
  else if (D <= 128)
    first_that_fits<Form<128, 64, 64, 8, 1, false, 1, 1>, Form<128, 32, 32, 8, 1, false, 1, 1>>(s, form);
  else
    first_that_fits<Form<256, 32, 32, 8, 1, false, 2, 1>, Form<256, 16, 16, 8, 1, false, 2, 1>,
                    Form<256, 16, 16, 4, 1, false, 2, 1>>(s, form);
}

}  // namespace octet::BACKEND
