#pragma once
// Tiles of the grouped product: what each pair of blocks computes, found from offsets in device memory.
//   rows   d[r,:] = a[r,:] b_e^T for the rows r of each expert e. A tile that reaches into the rows of the next expert
//          stores its own. Rows behind the last expert's get zeros: a group of their own, with nothing to contract.
//   sums   d_e += a_e b_e^T, contracted over the rows of e, a multiple of a step of the tensor cores. Experts without
//          rows have no tile.
#include "ops/gpu/grouped_launch.h"
#include "ops/gpu/hopper.cuh"
#include "ops/gpu/wgmma.cuh"

namespace octet::BACKEND::grouped {

using namespace hopper;

constexpr int kTileM = 128, kTileN = 256, kStages = 4, kThreads = 384, kConsumerWarps = 8;
constexpr int kStageBytes = (kTileM + kTileN) / 64 * kBlockBytes, kZeroBytes = 1024, kRoomBytes = 4 * kBlockBytes;
enum class Input { bf16, e4m3, e5m2 };  // of a; b of FP8 is e4m3

// How the kernel is made: kTurnA, kTurnB: stored with the contracted axis outermost; kAlongM: how the pair lies.
template <Input in, bool turn_a, bool turn_b, bool sums, bool split, bool along_m>
struct Form {
  static constexpr Input kIn = in;
  static constexpr bool kTurnA = turn_a, kTurnB = turn_b, kSums = sums, kSplit = split, kAlongM = along_m;
  static constexpr int kStageK = in == Input::bf16 ? 64 : 128, kStepK = kStageK / 4;
  static_assert(in == Input::bf16 ? !split : !turn_a && !turn_b, "FP8 operands lie along the contracted axis");
};

struct Groups {                           // of tiles: an expert each, and the rows behind all
  int first[kMost + 2], base[kMost + 2];  // row; pair of tiles
};
struct Tile {
  int group, row, rows /*of the group*/, m, n;
};

__device__ inline int ceil_of(int a, int b) { return (a + b - 1) / b; }

template <class F>
struct Walk {  // the pairs of tiles that this cluster computes, in the same order for all of its warps
  // A round has a cluster for every two multiprocessors and goes over its share of all pairs. There are several: where
  // collectives hold some multiprocessors, the others take more of the later rounds.
  static constexpr int kPairM = kTileM * (F::kAlongM ? 2 : 1), kPairN = kTileN * (F::kAlongM ? 1 : 2);
  static constexpr int kBand = 2048 / kPairM;  // tiles that run together share a square of operands in L2
  const Params& p;
  const Groups& groups;
  int rank, step, pair, end, group = 0;
  __device__ Walk(const Params& params, const Groups& g, int block) : p(params), groups(g), rank(block) {
    step = gridDim.x / 2 / p.rounds;
    const int all = groups.base[p.experts + 1], share = ceil_of(all, p.rounds * step) * step;
    const int cluster = blockIdx.x / 2, round = cluster / step;
    pair = round * share + cluster % step;
    end = min(all, (round + 1) * share);
  }
  static __device__ int count(const Params& p, int rows) {
    if (rows <= 0) return 0;
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
      if (e <= p.experts) base += Walk<F>::count(p, g.first[e + 1] - g.first[e]);
    }
  }
}

}  // namespace octet::BACKEND::grouped
