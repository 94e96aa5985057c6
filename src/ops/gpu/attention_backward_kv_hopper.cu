// dk and dv for Hopper: a thread block owns a tile of keys of one kv head, 64 a consumer warpgroup, and streams q and
// do of every query head that reads them, so that the sum over a group of heads is in registers.
//   s^T = k q^T,  dp^T = v do^T,  dv += p^T do,  dk += ds^T q,  where ds = p (dp - delta)
// Softmax overlaps a warpgroup's products: dp^T is under way while it computes p, dv while it computes ds.
#include "ops/gpu/attention_backward_hopper.cuh"

namespace octet::BACKEND {
namespace hopper {
namespace {

// A warpgroup's place among the tiles of queries: those of one head after the other.
template <class F>
struct Cursor {
  Attended queries;  // of the warpgroup's rows
  Ring<F::kStages>& ring;
  int first, tiles, left, tile = 0;  // tiles: of each head; left: of all heads
  __device__ bool more() const { return left > 0; }
  __device__ int query0() const { return (first + tile) * F::kStreamed; }
  __device__ void step() {
    ring.step(), --left;
    if (++tile == tiles) tile = 0;
  }
  __device__ bool visible() const { return !queries.none(query0(), F::kStreamed); }
};

__device__ inline float2 two_rows(uint32_t from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}
// s^T becomes p^T; lse (times -log2(e), in shared memory) belongs to its columns
template <int kR>
__device__ inline void probabilities(float (&s)[kR], uint32_t lse, float scale) {
#pragma unroll
  for (int j = 0; j < kR / 4; ++j) {
    const float2 l = two_rows(lse + j * 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[j * 4 + i] = exp2_approx(fmaf(s[j * 4 + i], scale, i % 2 ? l.y : l.x));
  }
}
// dp^T becomes ds^T; delta belongs to its columns
template <int kR>
__device__ inline void score_gradients(float (&dp)[kR], const float (&p)[kR], uint32_t delta) {
#pragma unroll
  for (int j = 0; j < kR / 4; ++j) {
    const float2 d = two_rows(delta + j * 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) dp[j * 4 + i] = p[j * 4 + i] * (dp[j * 4 + i] - (i % 2 ? d.y : d.x));
  }
}

template <class F>
struct KeyTile {
  using Form = F;
  const Backward& x;
  int b, g, row0, first, tiles;  // own rows: of sequence b, kv head g, from row0 on; tiles of queries of each head

  __device__ KeyTile(const Backward& backward, int block) : x(backward) {
    const BackwardParams& p = x.p;
    int tile, head;
    p.schedule.pick(block, &tile, &head);
    b = head / p.G, g = head % p.G, row0 = tile * F::kOwn;
    first = row0 / F::kStreamed;
    const int end = min(p.T, p.mask.queries_of(b, row0 + F::kOwn - 1).end);
    tiles = (end - 1) / F::kStreamed - first + 1;
  }
  static Schedule schedule(const Attention& a) {
    const Heads& heads = a.heads;
    const int64_t query_bytes = a.T * heads.D * 4 * heads.H / heads.G;
    return BACKEND::schedule(a.T, F::kOwn, a.B * heads.G, query_bytes, /*longest_last=*/false);
  }
  __device__ int k_column() const { return int(x.p.layout.k0 + g * x.p.layout.kv_step); }
  __device__ int to_v() const { return int(x.p.layout.v0 - x.p.layout.k0); }

  __device__ void produce(const Shared<F>& shared) const {
    const BackwardParams& p = x.p;
    const int group = p.H / p.G;
    load_own(shared, {x.qkv, k_column()}, {x.qkv, k_column() + to_v()}, row0, b);
    Ring<F::kStages> ring;
    for (int h = g * group; h < (g + 1) * group; ++h)
#pragma unroll 1
      for (int i = 0; i < tiles; ++i, ring.step()) {
        const int query0 = (first + i) * F::kStreamed;
        const Columns q{x.qkv, int(h * p.layout.q_step)}, d_o{x.d_o, h * F::kD};
        load_streamed(shared, ring, q, d_o, query0, b, F::kRowsBytes);
        // 0 beyond T: with q = do = 0 there, ds = 0
        tma_load_bytes(shared.rows(ring.stage), x.statistics_of(b, h, query0), F::kRowsBytes, shared.full(ring.stage));
      }
  }

  __device__ void consume(const Shared<F>& shared) const {
    const int warpgroup = uniform(int(threadIdx.x) / 128 - 1), row = row0 + warpgroup * 64, column = k_column();
    const uint32_t k = shared.own() + warpgroup * kBlockBytes, v = k + F::kOwnBytes;
    float dk[F::kD / 2], dv[F::kD / 2];
    clear(dk), clear(dv);
    mbarrier_wait(shared.own_full(), 0);
    mainloop(shared, row, k, dk, dv);
    store_results<F>(x.dqkv, row, b, warpgroup, Result{dk, x.p.scale, k, column}, Result{dv, 1, v, column + to_v()});
  }

  __device__ void mainloop(const Shared<F>& shared, int row, uint32_t own, float (&dk)[F::kD / 2],
                           float (&dv)[F::kD / 2]) const {
    constexpr int kStreamed = F::kStreamed;
    static_assert(kStreamed == 64);
    const BackwardParams& p = x.p;
    const float scale = p.scale * kLog2e;
    const OwnRows<F, (F::kKept > 0)> k(own);
    const OwnRows<F, (F::kKept > 1)> v(own + F::kOwnBytes);
    Ring<F::kStages> ring;
    Cursor<F> cursor{p.mask.columns_of_tile<Rows::keys>(b, row, 64), ring, first, tiles, tiles * (p.H / p.G)};
    int busy = -1;  // the stage that the products of the last tile read
#pragma unroll 2
    while (find_visible(shared, cursor, busy)) {
      const int stage = uniform(ring.stage), query0 = cursor.query0();
      const uint32_t q = shared.streamed(stage), d_o = q + F::kStreamedBytes,
                     rows = shared.rows(stage) + threadIdx.x % 4 * 8;
      float s[kStreamed / 2], dp[kStreamed / 2];
      wgmma_fence();
      k.product(s, q);
      wgmma_commit();
      wgmma_wait<1>();  // all of the last tile: its left factors make room for dp
      if (busy >= 0) shared.release(busy);
      wgmma_fence();
      v.product(dp, d_o);
      wgmma_commit();
      wgmma_wait<1>();  // s
      hold(s);
      if (!cursor.queries.all(query0, kStreamed)) hide<Rows::keys>(p.mask, s, b, row, query0);
      probabilities(s, rows, scale);
      uint32_t left_p[kStreamed / 16][4], left_ds[kStreamed / 16][4];
      round_to(left_p, s);
      wgmma_fence();
      product_nn(dv, left_p, descriptor(d_o, true, kStreamed * 128));
      wgmma_commit();
      wgmma_wait<1>();  // dp
      hold(dp);
      score_gradients(dp, s, rows + kStreamed * 4);
      round_to(left_ds, dp);
      wgmma_fence();
      product_nn(dk, left_ds, descriptor(q, true, kStreamed * 128));
      wgmma_commit();
      busy = stage;
      cursor.step();
    }
    wgmma_wait<0>();
    hold(dk), hold(dv);
  }
};

}  // namespace
}  // namespace hopper

void attention_backward_kv_hopper(Stream& s, const AttentionBackward& t, const Attention& a) {
  using namespace hopper;
  if (a.heads.D == 64) run_backward<KeyTile<BackwardForm<64, 64, 4, 2, 2>>>(s, t, a);
  else run_backward<KeyTile<BackwardForm<128, 64, 3, 2, 0>>>(s, t, a);
}

}  // namespace octet::BACKEND
