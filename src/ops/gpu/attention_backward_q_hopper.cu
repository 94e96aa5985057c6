// dq for Hopper; and, for the kernel of dk and dv, -lse log2(e) and delta = rowsum(do * o) of every query row. A thread
// block owns a tile of query rows of one head, 64 a consumer warpgroup, and streams the keys and values that they see.
//   s = q k^T,  dp = do v^T,  ds = p (dp - delta),  dq += ds k
#include "ops/gpu/attention_backward_hopper.cuh"

namespace octet::BACKEND {
namespace hopper {
namespace {

// A warpgroup's place among the tiles of keys, the diagonal first.
template <class F>
struct Cursor {
  Attended keys;  // of the warpgroup's rows
  int first, tile;
  Ring<F::kStages> ring{};
  __device__ bool more() const { return tile >= first; }
  __device__ void step() { ring.step(), --tile; }
  __device__ bool visible() const { return !keys.none(tile * F::kStreamed, F::kStreamed); }
};

// rowsum(x * y) of a row, by the quad of lanes that holds it
template <int kD>
__device__ float row_dot(const bf16* x, const bf16* y) {
  float sum = 0;
#pragma unroll
  for (int c = 0; c < kD; c += 32) {
    const uint4 u = *reinterpret_cast<const uint4*>(x + c + threadIdx.x % 4 * 8);
    const uint4 v = *reinterpret_cast<const uint4*>(y + c + threadIdx.x % 4 * 8);
    sum = add_products(sum, u, v);
  }
  return quad_sum(sum);
}

struct RowValues {  // of the two rows of a lane
  float lse[2] /*times -log2(e)*/, delta[2];
  template <int kD>
  __device__ static RowValues of(const Backward& backward, int b, int h, int row0) {
    const BackwardParams& p = backward.p;
    RowValues x;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + int(threadIdx.x) % 128 / 32 * 16 + half * 8 + int(threadIdx.x) % 32 / 4;
      const int inside = min(row, p.T - 1);
      const int64_t statistic = (int64_t(b) * p.H + h) * p.T + inside;
      const int64_t from = ((int64_t(b) * p.T + inside) * p.H + h) * kD;
      x.lse[half] = p.lse[statistic] * -kLog2e;
      x.delta[half] = row_dot<kD>(p.d_o + from, p.o + from);
      if (threadIdx.x % 4 > 0 || row >= backward.row_tiles * 64) continue;
      float* const to = backward.statistics_of(b, h, row);
      to[0] = row < p.T ? x.lse[half] : 0, to[64] = row < p.T ? x.delta[half] : 0;
    }
    return x;
  }
};
// dp becomes ds for 64 keys, those from column kFirst of s on.
template <int kFirst, int kR>
__device__ inline void score_gradients(float (&dp)[32], const float (&s)[kR], const RowValues& rows, float scale) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const float p = exp2_approx(fmaf(s[kFirst / 2 + i], scale, rows.lse[i % 4 / 2]));
    dp[i] = p * (dp[i] - rows.delta[i % 4 / 2]);
  }
}

template <class F>
struct QueryTile {
  using Form = F;
  const Backward& x;
  int b, h, row0, first, last;  // own rows: of sequence b, head h, from row0 on; tiles of keys: first .. last

  __device__ QueryTile(const Backward& backward, int block) : x(backward) {
    const BackwardParams& p = x.p;
    int tile, head;
    p.schedule.pick(block, &tile, &head);
    b = head / p.H, h = head % p.H, row0 = tile * F::kOwn;
    first = p.mask.keys_of(b, row0).begin / F::kStreamed;
    last = (min(row0 + F::kOwn, p.T) - 1) / F::kStreamed;
  }
  static Schedule schedule(const Attention& a) {
    const Heads& heads = a.heads;
    const int64_t key_bytes = a.T * heads.D * 4 * heads.G / heads.H;
    return BACKEND::schedule(a.T, F::kOwn, a.B * heads.H, key_bytes, /*longest_last=*/true);
  }

  __device__ void produce(const Shared<F>& shared) const {
    const BackwardParams& p = x.p;
    const Columns q{x.qkv, int(h * p.layout.q_step)}, d_o{x.d_o, h * F::kD};
    const Columns k{x.qkv, int(p.layout.k0 + h / (p.H / p.G) * p.layout.kv_step)};
    const Columns v{x.qkv, k.first + int(p.layout.v0 - p.layout.k0)};
    load_own(shared, q, d_o, row0, b);
    Ring<F::kStages> ring;
#pragma unroll 1
    for (int j = last; j >= first; --j, ring.step()) load_streamed(shared, ring, k, v, j * F::kStreamed, b);
  }

  __device__ void consume(const Shared<F>& shared) const {
    const int warpgroup = uniform(int(threadIdx.x) / 128 - 1), row = row0 + warpgroup * 64;
    const uint32_t q = shared.own() + warpgroup * kBlockBytes;
    const RowValues rows = RowValues::of<F::kD>(x, b, h, row);
    float dq[F::kD / 2];
    clear(dq);
    mbarrier_wait(shared.own_full(), 0);
    mainloop(shared, row, q, rows, dq);
    store_results<F>(x.dqkv, row, b, warpgroup, Result{dq, x.p.scale, q, int(h * x.p.layout.q_step)});
  }

  // While one half of ds is computed, dp of the other half or dq's product with the first is under way.
  __device__ void mainloop(const Shared<F>& shared, int row, uint32_t own, const RowValues& rows,
                           float (&dq)[F::kD / 2]) const {
    constexpr int kStreamed = F::kStreamed, kParts = kStreamed / 64;
    const BackwardParams& p = x.p;
    const float scale = p.scale * kLog2e;
    const OwnRows<F, (F::kKept > 0)> q(own);
    const OwnRows<F, (F::kKept > 1)> d_o(own + F::kOwnBytes);
    Cursor<F> cursor{p.mask.columns_of_tile<Rows::queries>(b, row, 64), first, last};
    int busy = -1;  // the stage that the products of the last tile read
#pragma unroll 2
    while (find_visible(shared, cursor, busy)) {
      const int stage = uniform(cursor.ring.stage), key0 = cursor.tile * kStreamed;
      const uint32_t k = shared.streamed(stage), v = k + F::kStreamedBytes;
      float s[kStreamed / 2], dp[kParts][32];
      uint32_t left[kParts][4][4];
      wgmma_fence();
      q.product(s, k);
      wgmma_commit();
      wgmma_wait<1>();  // the last tile: its left factors make room for dp
      if (busy >= 0) shared.release(busy);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        d_o.product(dp[i], v + i * kBlockBytes);
        wgmma_commit();
      }
      wgmma_wait<kParts>();  // s
      hold(s);
      if (!cursor.keys.all(key0, kStreamed)) hide<Rows::queries>(p.mask, s, b, row, key0);
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        wgmma_wait<kParts - 1>();  // this part of dp
        hold(dp[i]);
        if (i == 0) score_gradients<0>(dp[i], s, rows, scale);
        else score_gradients<kStreamed - 64>(dp[i], s, rows, scale);
        round_to(left[i], dp[i]);
        wgmma_fence();
        product_nn(dq, left[i], descriptor(k + i * kBlockBytes, true, kStreamed * 128));
        wgmma_commit();
      }
      busy = stage;
      cursor.step();
    }
    wgmma_wait<0>();
    hold(dq);
  }
};

}  // namespace
}  // namespace hopper

void attention_backward_q_hopper(Stream& s, const AttentionBackward& t, const Attention& a) {
  using namespace hopper;
  if (a.heads.D == 64) run_backward<QueryTile<BackwardForm<64, 128, 4, 2, 2>>>(s, t, a);
  else run_backward<QueryTile<BackwardForm<128, 128, 2, 2, 0>>>(s, t, a);
}

}  // namespace octet::BACKEND
