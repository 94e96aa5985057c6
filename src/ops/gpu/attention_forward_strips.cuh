#pragma once
// The consumer side of attention_forward_hopper.cu: how a warpgroup computes its strip of query rows.
#include "ops/gpu/attention_forward_hopper.cuh"
#include "ops/gpu/attention_softmax.cuh"

namespace octet::BACKEND::hopper {

// s (64, kKeys) = q k^T
template <class F>
__device__ inline void score(float (&s)[F::kKeys / 2], uint64_t q, uint32_t k) {
  const uint64_t keys = descriptor(k, false);
#pragma unroll
  for (int i = 0; i < F::kD / 16; ++i) {
    const int in_block = i % 4 * int(kStepOf16<false>);
    wgmma_bf16<false, false>(s, advanced(q, i / 4 * (kBlockBytes >> 4) + in_block),
                             advanced(keys, i / 4 * (F::kKeyBlock >> 4) + in_block), i > 0);
  }
  wgmma_commit();
}
// o (64, kD) += p v
template <class F>
__device__ inline void add_values(float (&o)[F::kD / 2], const uint32_t (&p)[F::kKeys / 16][4], uint32_t v) {
  const uint64_t values = descriptor(v, true, F::kKeyBlock);
#pragma unroll
  for (int i = 0; i < F::kKeys / 16; ++i) wgmma_bf16<true>(o, p[i], advanced(values, i * int(kStepOf16<true>)));
  wgmma_commit();
}
template <int kCount>
__device__ inline void round_to(uint32_t (&p)[kCount / 8][4], const float (&s)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) p[i / 4][i % 4] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

template <class F>
struct Turns {  // of the warpgroups at issuing products
  int group;
  __device__ explicit Turns(int g) : group(g) {
    if (group == F::kGroups - 1) pass();
  }
  __device__ void take() const { asm volatile("bar.sync %0, 256;" ::"r"(barrier_of(group)) : "memory"); }
  __device__ void pass() const {
    asm volatile("bar.arrive %0, 256;" ::"r"(barrier_of(group + 1 == F::kGroups ? 0 : group + 1)) : "memory");
  }
  __device__ void end() const {  // takes the last pass(), for which no warpgroup waits
    if (group == 0) take();
  }
  // Named barriers; the lower numbers are warpgroup_sync's.
  static __device__ int barrier_of(int g) { return 1 + F::kGroups + g; }
};

template <class F>
struct Strips {  // the strips that a warpgroup computes, one of each row tile
  const ForwardParams& p;
  uint32_t shared;
  int group, warp_row;  // first row of the warp in a strip
  Keys<F> k;
  Values<F> v;
  Turns<F> turns;

  __device__ Strips(const ForwardParams& params, uint32_t s)
      : p(params),
        shared(s),
        group(uniform(int(threadIdx.x) / 128) - 1),
        warp_row(uniform(int(threadIdx.x) % 128 / 32) * 16),
        k(s),
        v(s),
        turns(group) {}

  __device__ bool next(RowTile& t, uint32_t parity) const {
    int at = 0;
    mbarrier_wait(shared + F::kQFull + group * 8, parity);
    if (threadIdx.x % 32 == 0)  // only the lane that later releases this place, which covers its own reads alone
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(at) : "r"(shared + F::kTile + group * 4) : "memory");
    return find<F>(p, uniform(at), t);
  }

  __device__ void compute(const RowTile& t) {
    const int row0 = t.row0 + group * kStrip;
    const int last = min(t.last, (row0 + kStrip - 1) / F::kKeys);
    const int first = min(last, p.mask.keys_of(t.b, row0).begin / F::kKeys);        // min: for rows beyond T
    const int seen_by_all = uniform(p.mask.keys_of(t.b, row0 + kStrip - 1).begin);  // keys from here to the diagonal
    for (int n = t.last; n > last; --n) skip();
    const uint64_t q = descriptor(shared + group * F::kStripBytes, false);
    float o[F::kD / 2] = {}, s[F::kKeys / 2];
    uint32_t rounded[F::kKeys / 16][4];
    LaggingSoftmax softmax;
    k.wait();
    turns.take();
    wgmma_fence();
    score<F>(s, q, k.tile());
    turns.pass();
    wgmma_wait<0>();
    hold(s);
    release(k.next());
    hide_after(s, row0 + warp_row, last * F::kKeys);
    if (last * F::kKeys < seen_by_all) hide_before(s, p.mask, t.b, row0 + warp_row, last * F::kKeys);
    softmax.start(s, p.scale);
    softmax.template exponentiate<0, 4>(s, p.scale);
    round_to(rounded, s);
#pragma unroll 1
    for (int n = last - 1; n >= first; --n) {
      k.wait();
      turns.take();
      wgmma_fence();
      score<F>(s, q, k.tile());
      v.wait();
      wgmma_fence();
      add_values<F>(o, rounded, v.tile());
      turns.pass();
      wgmma_wait<1>();
      hold(s);
      release(k.next());
      const uint32_t values_read = v.next();
      if (n * F::kKeys < seen_by_all) hide_before(s, p.mask, t.b, row0 + warp_row, n * F::kKeys);
      const bool grown = softmax.step(s, p.scale);
      softmax.template exponentiate<0, F::kBefore>(s, p.scale);
      wait_after(softmax.sum[0] + softmax.sum[1]);
      hold(o);
      release(values_read);
      if (grown) {
#pragma unroll
        for (int i = 0; i < F::kD / 2; ++i) o[i] *= softmax.shrink[i % 4 / 2];
      }
      softmax.template exponentiate<F::kBefore, 4>(s, p.scale);
      round_to(rounded, s);
    }
    release(shared + F::kQEmpty + group * 8);
    v.wait();
    wgmma_fence();
    add_values<F>(o, rounded, v.tile());
    softmax.finish();
    store_lse(t, row0, softmax);
    wgmma_wait<0>();
    hold(o);
    release(v.next());
    for (int n = first - 1; n >= t.first; --n) skip();
    store(t, row0, o, softmax);
  }

 private:
  // Waits for all products, but not before x is known. ptxas would move the wait ahead of the exponentials, which do
  // not depend on it and are to be computed meanwhile; it moves nothing across a trap. x, a sum of exponentials, is
  // never negative.
  static __device__ void wait_after(float x) {
    asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p trap;\n}" ::"f"(x) : "memory");
    wgmma_wait<0>();
  }

  __device__ void skip() {  // a tile of keys that other strips of the row tile see
    turns.take(), turns.pass();
    k.wait(), release(k.next());
    v.wait(), release(v.next());
  }

  __device__ void store_lse(const RowTile& t, int row0, const LaggingSoftmax& softmax) const {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + warp_row + half * 8 + lane / 4;
      if (lane % 4 == 0 && row < p.T) p.lse[(int64_t(t.b) * p.H + t.h) * p.T + row] = softmax.log_sum(half);
    }
  }

  // Through shared memory, swizzled like the other tiles, by a TMA store that overlaps the next row tile.
  __device__ void store(const RowTile& t, int row0, const float (&o)[F::kD / 2], const LaggingSoftmax& softmax) const {
    int lane = int(threadIdx.x) % 32;
    asm volatile("" : "+r"(lane));  // so that addresses are computed here and take no registers in the loop above
    const bool starts = threadIdx.x % 128 == 0;
    const float factor[2] = {1 / softmax.sum[0], 1 / softmax.sum[1]};
    const uint32_t tile = shared + F::kO + group * F::kStripBytes;
    const uint32_t to = tile + (warp_row + lane / 4) * 128 + lane / 4 * 16 + lane % 4 * 4;  // chunk c of row r: c ^ r
    if (starts) tma_store_wait_read<0>();
    warpgroup_sync(group);
#pragma unroll
    for (int i = 0; i < F::kD / 4; ++i) {
      const int chunk = i / 2, half = i % 2;
      const uint32_t value = pack_bf16(o[2 * i] * factor[half], o[2 * i + 1] * factor[half]);
      asm volatile("st.shared.b32 [%0], %1;" ::"r"((to ^ chunk % 8 * 16) + chunk / 8 * kBlockBytes + half * 1024),
                   "r"(value)
                   : "memory");
    }
    fence_async_proxy();
    warpgroup_sync(group);
    if (!starts) return;
#pragma unroll
    for (int c = 0; c < F::kD / 64; ++c) tma_store(p.o, t.h * F::kD + c * 64, row0, t.b, tile + c * kBlockBytes);
    tma_store_commit();
  }
};

}  // namespace octet::BACKEND::hopper
