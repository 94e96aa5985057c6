// dk and dv for Hopper: a thread block takes tiles of keys of a kv head, 64 a warpgroup, and goes through the query
// tiles of every query head that reads them, so the sum over a group of heads is in registers.
//   s^T = k q^T,  dp^T = v do^T,  dv += p^T do,  dk += ds^T q,  where ds = p (dp - delta)
// A warpgroup's products are under way while it computes: dp^T while it computes p, dv while it computes ds.
#include "ops/gpu/attention_backward_hopper.cuh"
#include "ops/gpu/attention_kernels.h"

namespace octet::BACKEND {
namespace hopper {
namespace {

// A tile of keys of a kv head, and the query tiles of each head of its group that see it.
struct Item {
  int b, g, row0, first, tiles;
  template <class F>
  __device__ static Item of(const BackwardParams& p, int item) {
    int tile, head;
    p.schedule.pick(item, &tile, &head);
    Item x{.b = head / p.G, .g = head % p.G, .row0 = tile * F::kOwn};
    x.first = x.row0 / F::kAcross;
    const int end = int(min(int64_t(p.T), int64_t(x.row0) + F::kOwn - 1 + p.mask.window));
    x.tiles = (end - 1) / F::kAcross - x.first + 1;
    return x;
  }
};

template <class F>
__device__ void produce(const Backward& x, const Shared<F>& shared, const Item& at) {
  const BackwardParams& p = x.p;
  const int group = p.H / p.G;
  const int k_column = int(p.layout.k0 + at.g * p.layout.kv_step), to_values = int(p.layout.v0 - p.layout.k0);
  const uint32_t k = shared.own(), own_full = shared.own_full();
  barrier_expect(own_full, 2 * F::kOwnBytes);
  load_rows<F::kD, F::kOwn>(k, x.qkv, k_column, at.row0, at.b, own_full);
  load_rows<F::kD, F::kOwn>(k + F::kOwnBytes, x.qkv, k_column + to_values, at.row0, at.b, own_full);
  Ring<F::kStages> ring;
  for (int h = at.g * group; h < (at.g + 1) * group; ++h)
#pragma unroll 1
    for (int i = 0; i < at.tiles; ++i, ring.step()) {
      const int query0 = (at.first + i) * F::kAcross;
      const uint32_t q = shared.across(ring.stage), full = shared.full(ring.stage);
      barrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
      barrier_expect(full, 2 * F::kAcrossBytes + F::kRowsBytes);
      load_rows<F::kD, F::kAcross>(q, x.qkv, int(h * p.layout.q_step), query0, at.b, full);
      load_rows<F::kD, F::kAcross>(q + F::kAcrossBytes, x.d_o, h * F::kD, query0, at.b, full);
      // 0 beyond T: with q = do = 0 there, ds = 0
      load_bytes(shared.rows(ring.stage), x.statistics_of(at.b, h, query0), F::kRowsBytes, full);
    }
}

// The tiles that a warpgroup's keys see; the others it passes.
template <class F>
struct Cursor {
  const Shared<F>& shared;
  const Mask& mask;
  Ring<F::kStages>& ring;
  int key0, first, tiles, left, tile = 0;
  __device__ Cursor(const Shared<F>& s, const BackwardParams& p, Ring<F::kStages>& r, const Item& at, int row)
      : shared(s), mask(p.mask), ring(r), key0(row), first(at.first), tiles(at.tiles), left(at.tiles * (p.H / p.G)) {}
  __device__ int query0() const { return (first + tile) * F::kAcross; }
  __device__ void step() {
    ring.step(), --left;
    if (++tile == tiles) tile = 0;
  }
  __device__ bool find() {
    for (; left > 0; step()) {
      barrier_wait(shared.full(ring.stage), ring.parity);
      if (!mask.none(query0(), F::kAcross, key0, 64)) return true;
      shared.release(ring.stage);
    }
    return false;
  }
};

__device__ inline float2 two_rows(uint32_t from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}
// s^T becomes p^T; lse belongs to columns
template <int kR>
__device__ inline void probabilities(float (&s)[kR], uint32_t lse, float scale) {
#pragma unroll
  for (int j = 0; j < kR / 4; ++j) {
    const float2 l = two_rows(lse + j * 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[j * 4 + i] = exp2_fast(fmaf(s[j * 4 + i], scale, i % 2 ? l.y : l.x));
  }
}
// dp^T becomes ds^T
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
__device__ inline void contract(const Backward& x, const Shared<F>& shared, const Item& at, int row, uint32_t own,
                                float (&dk)[F::kD / 2], float (&dv)[F::kD / 2]) {
  constexpr int kAcross = F::kAcross;
  static_assert(F::kAcross == 64 && F::kStages > F::kGroups);  // it passes tiles also where the next head's begin
  const BackwardParams& p = x.p;
  const float scale = p.scale * kLog2e;
  const OwnRows<F, (F::kKept > 0)> k(own);
  const OwnRows<F, (F::kKept > 1)> v(own + F::kOwnBytes);
  Ring<F::kStages> ring;
  Cursor<F> cursor(shared, p, ring, at, row);
  int busy = -1;  // the stage that the products of the last tile read
#pragma unroll 2
  while (cursor.find()) {
    const int stage = uniform(ring.stage), query0 = cursor.query0();
    const uint32_t q = shared.across(stage), d_o = q + F::kAcrossBytes, rows = shared.rows(stage) + threadIdx.x % 4 * 8;
    float s[kAcross / 2], dp[kAcross / 2];
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
    if (!p.mask.all(query0, kAcross, row, 64)) hide<Rows::keys>(p.mask, s, row, query0);
    probabilities(s, rows, scale);
    uint32_t left_p[kAcross / 16][4], left_ds[kAcross / 16][4];
    round_to(left_p, s);
    wgmma_fence();
    product_nn(dv, left_p, descriptor(d_o, true, kAcross * 128));
    wgmma_commit();
    wgmma_wait<1>();  // dp
    hold(dp);
    score_gradients(dp, s, rows + kAcross * 4);
    round_to(left_ds, dp);
    wgmma_fence();
    product_nn(dk, left_ds, descriptor(q, true, kAcross * 128));
    wgmma_commit();
    busy = stage;
    cursor.step();
  }
  wgmma_wait<0>();
  hold(dk), hold(dv);
}

template <class F>
__device__ void consume(const Backward& x, const Shared<F>& shared, const Item& at) {
  const QkvLayout& layout = x.p.layout;
  const int warpgroup = uniform(int(threadIdx.x) / 128 - 1);
  const int row = at.row0 + warpgroup * 64, column = int(layout.k0 + at.g * layout.kv_step);
  const uint32_t k = shared.own() + warpgroup * kBlockBytes, v = k + F::kOwnBytes;
  float dk[F::kD / 2], dv[F::kD / 2];
#pragma unroll
  for (int i = 0; i < F::kD / 2; ++i) dk[i] = dv[i] = 0;
  hold(dk), hold(dv);  // known to be zeros, they would be set anew in the midst of products
  barrier_wait(shared.own_full(), 0);
  contract<F>(x, shared, at, row, k, dk, dv);
  warpgroup_sync(warpgroup);  // nobody reads k and v any more: they make room for dk and dv on their way out
  write_rows<F::kOwn>(k, dk, x.p.scale);
  write_rows<F::kOwn>(v, dv, 1);
  fence_for_tensor_cores();
  warpgroup_sync(warpgroup);
  if (threadIdx.x % 128 > 0) return;
  store_rows<F::kD, F::kOwn>(x.dqkv, column, row, at.b, k);
  store_rows<F::kD, F::kOwn>(x.dqkv, column + int(layout.v0 - layout.k0), row, at.b, v);
  commit_copies();
  wait_until_read<0>();
}

template <class F>
__global__ void __launch_bounds__(F::kThreads, 1) dkv_kernel(const __grid_constant__ Backward x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // other cards never get here
  extern __shared__ char dynamic[];
  const Shared<F> shared(dynamic);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const Item at = Item::of<F>(x.p, int(blockIdx.x));
  if (threadIdx.x < 128) {
    give_registers<F::kLoading>();
    if (threadIdx.x == 0) produce<F>(x, shared, at);
  } else {
    take_registers<F::kComputing>();
    consume<F>(x, shared, at);
  }
#endif
}

template <class F>
void run_kv(Stream& s, const AttentionBackward& t, const Attention& a) {
  const Heads& heads = a.heads;
  const Backward x = backward_of(t, a,
                                 schedule(a.T, F::kOwn, a.B * heads.G, a.T * heads.D * 4 * heads.H / heads.G,
                                          /*longest_last=*/false));
  launch(dkv_kernel<F>, x.p.schedule.blocks(), F::kThreads, F::kSharedBytes, s, x);
}

}  // namespace
}  // namespace hopper

void attention_backward_kv_hopper(Stream& s, const AttentionBackward& t, const Attention& a) {
  if (a.heads.D == 64) hopper::run_kv<hopper::BackwardForm<64, 64, 4, 2, 2>>(s, t, a);
  else hopper::run_kv<hopper::BackwardForm<128, 64, 3, 2, 0>>(s, t, a);
}
}  // namespace octet::BACKEND
