#pragma once
// The tile scheduler of the grouped product: which pair of tiles each cluster computes, from offsets in device memory.
//   rows   d[r,:] = a[r,:] b_e^T for the rows r of each expert e. A tile that reaches into the rows of the next expert
//          stores its own rows only. Unused rows become zero: they are a group of their own, with nothing to contract.
//   sums   d_e += a_e b_e^T, contracted over the rows of e, whose number is a multiple of one FP8 wgmma's k. Experts
//          without rows have no tiles, unless their d_e has to become zero.
#include "ops/gpu/grouped_launch.h"
#include "ops/gpu/hopper.cuh"
#include "ops/gpu/wgmma.cuh"

namespace octet::BACKEND::grouped {

using namespace hopper;

constexpr int kTileM = 128, kTileN = 256, kStages = 4, kThreads = 384, kConsumerWarps = 8;
constexpr int kStageBytes = (kTileM + kTileN) / 64 * kBlockBytes, kZeroBytes = 1024, kStagingBytes = 4 * kBlockBytes;
enum class Input { bf16, e4m3, e5m2 };  // of a; b of FP8 is e4m3

// An instance of the kernel. kMnMajorA, kMnMajorB: the operand is stored MN-major, with the contracted axis outermost;
// kSums: see above; kSplit: split accumulation; kAlongM: the two tiles of a pair are neighbours along M, else along N.
template <Input in, bool mn_major_a, bool mn_major_b, bool sums, bool split, bool along_m>
struct Form {
  static constexpr Input kIn = in;
  static constexpr bool kMnMajorA = mn_major_a, kMnMajorB = mn_major_b, kSums = sums, kSplit = split, kAlongM = along_m;
  static constexpr int kStageK = in == Input::bf16 ? 64 : 128, kStepK = kStageK / 4;
  static_assert(in == Input::bf16 ? !split : !mn_major_a && !mn_major_b, "FP8 operands lie along the contracted axis");
};

struct Groups {                           // groups of tiles: one for each expert, and one for the unused rows
  int first[kMost + 2], base[kMost + 2];  // the first row and the first pair of tiles of each
};
struct Tile {
  int group, row, rows /*of the group*/, m, n;
};

__device__ inline int ceil_of(int a, int b) { return (a + b - 1) / b; }

template <class F>
struct TileScheduler {  // the pairs of tiles that this cluster computes, in the same order for all of its warps
  // The grid is several rounds of one cluster for every two SMs; each round has its share of all pairs. Several, so
  // that where collectives occupy some SMs, the others take more of the later rounds.
  static constexpr int kPairM = kTileM * (F::kAlongM ? 2 : 1), kPairN = kTileN * (F::kAlongM ? 1 : 2);
  static constexpr int kBand = 2048 / kPairM;  // pairs go down bands of 2048 rows: those that run together share L2
  const Params& p;
  const Groups& groups;
  int rank, step, pair, end, group = 0;
  __device__ TileScheduler(const Params& params, const Groups& g, int block) : p(params), groups(g), rank(block) {
    step = gridDim.x / 2 / p.rounds;
    const int all = groups.base[p.experts + 1], share = ceil_of(all, p.rounds * step) * step;
    const int cluster = blockIdx.x / 2, round = cluster / step;
    pair = round * share + cluster % step;
    end = min(all, (round + 1) * share);
  }
  static __device__ int count(const Params& p, int group, int rows) {
    const bool clears = F::kSums && !adds(p.store) && group < p.experts;
    if (rows <= 0 && !clears) return 0;
    return ceil_of(F::kSums ? p.M : rows, kPairM) * ceil_of(p.N, kPairN);
  }
  __device__ bool next(Tile& t) {
    if (pair >= end) return false;
    while (pair >= groups.base[group + 1]) ++group;
    t.group = group, t.row = groups.first[group], t.rows = groups.first[group + 1] - t.row;
    const int down = ceil_of(F::kSums ? p.M : t.rows, kPairM), across = ceil_of(p.N, kPairN);
    const int at = pair - groups.base[group], band = at / (kBand * across), in_band = at - band * kBand * across;
    const int deep = min(kBand, down - band * kBand);
    t.m = (band * kBand + in_band % deep) * kPairM + (F::kAlongM ? rank * kTileM : 0);
    t.n = in_band / deep * kPairN + (F::kAlongM ? 0 : rank * kTileN);
    pair += step;
    return true;
  }
  __device__ int contracted(const Tile& t) const {
    if (F::kSums) return t.rows;
    return t.group < p.experts ? p.K : 0;
  }
};

template <class F>
__device__ void find_groups(const Params& p, Groups& g) {
  for (int e = threadIdx.x; e <= p.experts; e += kThreads) g.first[e] = p.offset[e];
  __syncthreads();
  if (threadIdx.x == 0) {
    g.first[p.experts + 1] = F::kSums ? g.first[p.experts] : max(g.first[p.experts], p.M);
    int base = 0;
    for (int e = 0; e <= p.experts + 1; ++e) {
      g.base[e] = base;
      if (e <= p.experts) base += TileScheduler<F>::count(p, e, g.first[e + 1] - g.first[e]);
    }
  }
}

}  // namespace octet::BACKEND::grouped
