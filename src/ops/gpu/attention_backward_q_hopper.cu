// dq for Hopper, and the log-sums and delta = rowsum(do * o) of its rows for the kernel of dk and dv: a thread block
// takes tiles of query rows of a head, 64 a warpgroup, and goes through the keys that they see.
//   s = q k^T,  dp = do v^T,  ds = p (dp - delta),  dq += ds k
#include "ops/gpu/attention_backward_hopper.cuh"
#include "ops/gpu/attention_kernels.h"

namespace octet::BACKEND {
namespace hopper {
namespace {

// A tile of query rows of a head, and the key tiles that it sees.
struct Item {
  int b, h, row0, first, last;
  template <class F>
  __device__ static Item of(const BackwardParams& p, int item) {
    int tile, head;
    p.schedule.pick(item, &tile, &head);
    Item x{.b = head / p.H, .h = head % p.H, .row0 = tile * F::kOwn};
    x.first = max(0, x.row0 - p.mask.window + 1) / F::kAcross;
    x.last = (min(x.row0 + F::kOwn, p.T) - 1) / F::kAcross;
    return x;
  }
};

template <class F>
__device__ void produce(const Backward& x, const Shared<F>& shared, const Item& at) {
  const BackwardParams& p = x.p;
  const int k_column = int(p.layout.k0 + at.h / (p.H / p.G) * p.layout.kv_step);
  const int v_column = k_column + int(p.layout.v0 - p.layout.k0);
  const uint32_t q = shared.own(), own_full = shared.own_full();
  barrier_expect(own_full, 2 * F::kOwnBytes);
  load_rows<F::kD, F::kOwn>(q, x.qkv, int(at.h * p.layout.q_step), at.row0, at.b, own_full);
  load_rows<F::kD, F::kOwn>(q + F::kOwnBytes, x.d_o, at.h * F::kD, at.row0, at.b, own_full);
  Ring<F::kStages> ring;
#pragma unroll 1
  for (int j = at.last; j >= at.first; --j, ring.step()) {
    const uint32_t k = shared.across(ring.stage), full = shared.full(ring.stage);
    barrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
    barrier_expect(full, 2 * F::kAcrossBytes);
    load_rows<F::kD, F::kAcross>(k, x.qkv, k_column, j * F::kAcross, at.b, full);
    load_rows<F::kD, F::kAcross>(k + F::kAcrossBytes, x.qkv, v_column, j * F::kAcross, at.b, full);
  }
}

// The tiles that a warpgroup's rows see, the diagonal first; the others it passes.
template <class F>
struct Cursor {
  const Shared<F>& shared;
  const Mask& mask;
  int row0, first, tile;
  Ring<F::kStages> ring{};
  __device__ void step() { ring.step(), --tile; }
  __device__ bool find() {
    for (; tile >= first; step()) {
      barrier_wait(shared.full(ring.stage), ring.parity);
      if (!mask.none(row0, 64, tile * F::kAcross, F::kAcross)) return true;
      shared.release(ring.stage);
    }
    return false;
  }
};

// rowsum(x * y) of one row by the four lanes that hold it
template <int kD>
__device__ float row_dot(const bf16* x, const bf16* y) {
  float sum = 0;
#pragma unroll
  for (int c = 0; c < kD; c += 32) {
    const uint4 u = *reinterpret_cast<const uint4*>(x + c + threadIdx.x % 4 * 8);
    const uint4 v = *reinterpret_cast<const uint4*>(y + c + threadIdx.x % 4 * 8);
    const uint32_t us[4] = {u.x, u.y, u.z, u.w}, vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum = fmaf(__uint_as_float(us[i] << 16), __uint_as_float(vs[i] << 16), sum);
      sum = fmaf(__uint_as_float(us[i] & 0xffff0000), __uint_as_float(vs[i] & 0xffff0000), sum);
    }
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}

struct RowValues {  // of the two rows of a lane
  float lse[2] /*times -log2(e)*/, delta[2];
  template <class F>
  __device__ static RowValues of(const Backward& backward, const Item& at, int row0) {
    const BackwardParams& p = backward.p;
    RowValues x;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + int(threadIdx.x) % 128 / 32 * 16 + half * 8 + int(threadIdx.x) % 32 / 4;
      const int inside = min(row, p.T - 1);
      const int64_t statistic = (int64_t(at.b) * p.H + at.h) * p.T + inside;
      const int64_t from = ((int64_t(at.b) * p.T + inside) * p.H + at.h) * F::kD;
      x.lse[half] = p.lse[statistic] * -kLog2e;
      x.delta[half] = row_dot<F::kD>(p.d_o + from, p.o + from);
      if (threadIdx.x % 4 > 0 || row >= backward.row_tiles * 64) continue;
      float* const to = backward.statistics_of(at.b, at.h, row);
      to[0] = row < p.T ? x.lse[half] : 0, to[64] = row < p.T ? x.delta[half] : 0;
    }
    return x;
  }
};
// Half of a tile, 64 keys from column kFirst of s on: dp becomes ds.
template <int kFirst, int kR>
__device__ inline void score_gradients(float (&dp)[32], const float (&s)[kR], const RowValues& rows, float scale) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const float p = exp2_fast(fmaf(s[kFirst / 2 + i], scale, rows.lse[i % 4 / 2]));
    dp[i] = p * (dp[i] - rows.delta[i % 4 / 2]);
  }
}

// While a half of ds is computed, the other half's dp or its product with the keys is under way.
template <class F>
__device__ inline void contract(const Backward& x, const Shared<F>& shared, Cursor<F> cursor, uint32_t own,
                                const RowValues& rows, float (&dq)[F::kD / 2]) {
  constexpr int kAcross = F::kAcross, kParts = kAcross / 64;
  const BackwardParams& p = x.p;
  const float scale = p.scale * kLog2e;
  const OwnRows<F, (F::kKept > 0)> q(own);
  const OwnRows<F, (F::kKept > 1)> d_o(own + F::kOwnBytes);
  int busy = -1;  // the stage that the products of the last tile read
#pragma unroll 2
  while (cursor.find()) {
    const int stage = uniform(cursor.ring.stage), key0 = cursor.tile * kAcross;
    const uint32_t k = shared.across(stage), v = k + F::kAcrossBytes;
    float s[kAcross / 2], dp[kParts][32];
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
    if (!p.mask.all(cursor.row0, 64, key0, kAcross)) hide<Rows::queries>(p.mask, s, cursor.row0, key0);
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      wgmma_wait<kParts - 1>();  // this part of dp
      hold(dp[i]);
      if (i == 0) score_gradients<0>(dp[i], s, rows, scale);
      else score_gradients<kAcross - 64>(dp[i], s, rows, scale);
      round_to(left[i], dp[i]);
      wgmma_fence();
      product_nn(dq, left[i], descriptor(k + i * kBlockBytes, true, kAcross * 128));
      wgmma_commit();
    }
    busy = stage;
    cursor.step();
  }
  wgmma_wait<0>();
  hold(dq);
}

template <class F>
__device__ void consume(const Backward& x, const Shared<F>& shared, const Item& at) {
  const int warpgroup = uniform(int(threadIdx.x) / 128 - 1), row0 = at.row0 + warpgroup * 64;
  const uint32_t q = shared.own() + warpgroup * kBlockBytes;
  const RowValues rows = RowValues::of<F>(x, at, row0);
  float dq[F::kD / 2];
#pragma unroll
  for (int i = 0; i < F::kD / 2; ++i) dq[i] = 0;
  hold(dq);  // known to be zeros, they would be set anew in the midst of products
  barrier_wait(shared.own_full(), 0);
  contract<F>(x, shared, {shared, x.p.mask, row0, at.first, at.last}, q, rows, dq);
  warpgroup_sync(warpgroup);  // nobody reads q any more: it makes room for dq on its way out
  write_rows<F::kOwn>(q, dq, x.p.scale);
  fence_for_tensor_cores();
  warpgroup_sync(warpgroup);
  if (threadIdx.x % 128 > 0) return;
  store_rows<F::kD, F::kOwn>(x.dqkv, int(at.h * x.p.layout.q_step), row0, at.b, q);
  commit_copies();
  wait_until_read<0>();
}

template <class F>
__global__ void __launch_bounds__(F::kThreads, 1) dq_kernel(const __grid_constant__ Backward x) {
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
void run_q(Stream& s, const AttentionBackward& t, const Attention& a) {
  const Heads& heads = a.heads;
  const Backward x = backward_of(
      t, a, schedule(a.T, F::kOwn, a.B * heads.H, a.T * heads.D * 4 * heads.G / heads.H, /*longest_last=*/true));
  launch(dq_kernel<F>, x.p.schedule.blocks(), F::kThreads, F::kSharedBytes, s, x);
}

}  // namespace
}  // namespace hopper

void attention_backward_q_hopper(Stream& s, const AttentionBackward& t, const Attention& a) {
  if (a.heads.D == 64) hopper::run_q<hopper::BackwardForm<64, 128, 4, 2, 2>>(s, t, a);
  else hopper::run_q<hopper::BackwardForm<128, 128, 2, 2, 0>>(s, t, a);
}
}  // namespace octet::BACKEND
