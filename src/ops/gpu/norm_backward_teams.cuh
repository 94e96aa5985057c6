#pragma once
// RMSNorm and LayerNorm (kCentre), backward.
//   dx += rstd * (g - [mean_c g] - xhat * mean_c(g xhat)),  g = w*dy;   dw += sum_n dy*xhat;   [db += sum_n dy]
// A thread block consists of teams of whole warps. A team works on one row at a time and synchronises with no other. A
// thread's part of dw and db stays in registers until the end, when the teams' sums are added into the block's row of
// `partial`. While a team works on a row, x, dy and dx of its next rows are copied to shared memory by cp.async; a
// thread reads only what it copied itself, so that the sums need the only barrier.
#include <cuda_pipeline_primitives.h>

#include "ops/gpu/norm.cuh"

namespace octet::BACKEND {

template <class T>
struct NormBackward {
  T* dx;                           // (N,C)
  const T *dy, *x, *w;             // (N,C), (N,C), (C)
  const float *mean, *rstd;        // (N)
  float *dw_partial, *db_partial;  // (gridDim, C)
  int64_t N;
  int C;
};

struct Team {  // the whole warps that share a row
  int threads, index, rank;
  __device__ explicit Team(int size) : threads(size), index(threadIdx.x / size), rank(threadIdx.x % size) {}
  __device__ void wait() const {  // bar.sync wants whole warps
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "r"(threads) : "memory");
  }
  // Sums over the team, for every thread. room: shared memory [k][warp], zeros beyond the team's warps. Consecutive
  // calls need to alternate between two of them.
  template <int K>
  __device__ void sum(float (&v)[K], float (*room)[16]) const {
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = warp_sum(v[k]);
    if (threads == 32) return;
    if (rank % 32 == 0)
#pragma unroll
      for (int k = 0; k < K; ++k) room[k][rank / 32] = v[k];
    wait();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      v[k] = 0;
      for (int w = 0; w < threads / 32; w += 4) {
        const float4 p = *reinterpret_cast<const float4*>(&room[k][w]);
        v[k] += (p.x + p.y) + (p.z + p.w);
      }
    }
  }
};

template <class T>
__device__ inline void fetch(Pack<T>* to, const T* from) {
#pragma unroll
  for (size_t i = 0; i < sizeof(Pack<T>); i += 16)
    __pipeline_memcpy_async(reinterpret_cast<char*>(to) + i, reinterpret_cast<const char*>(from) + i, 16);
}

// The ring of rows in flight: x, dy, dx of kStages rows, (kStages, 3, kVectors, block's threads).
template <class T, int kVectors, int kStages>
struct RowRing {
  Pack<T>* mine;
  int stride;
  __device__ Pack<T>* at(int stage, int which, int k) const {
    return mine + ((stage * 3 + which) * kVectors + k) * stride;
  }
  __device__ void request(const NormBackward<T>& f, const Team& team, int64_t n, int stage) const {
    if (n < f.N) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        const int v = k * team.threads + team.rank;
        if (v * 8 >= f.C) break;
        const int64_t from = n * f.C + v * 8;
        fetch(at(stage, 0, k), f.x + from);
        fetch(at(stage, 1, k), f.dy + from);
        fetch(at(stage, 2, k), f.dx + from);
      }
    }
    __pipeline_commit();  // even if empty: one group a row
  }
};

// A thread's columns: their weights, and dw and db over the rows so far.
template <class T, int kVectors, int kStages, bool kCentre>
struct NormColumns {
  static constexpr int kSums = kCentre ? 2 : 1;
  using Ring = RowRing<T, kVectors, kStages>;
  Pack<T> weight[kVectors];
  float dw[kVectors][8] = {}, db[kCentre ? kVectors : 1][8] = {};

  __device__ NormColumns(const NormBackward<T>& f, const Team& team) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int v = k * team.threads + team.rank;
      weight[k] = load<true>(f.w + v * 8, v * 8 < f.C);
    }
  }
  // Accumulates a row into dw and db; sums: the thread's part of the row's sums of g*(x - mean) and g.
  __device__ void accumulate(float (&sums)[kSums], const Ring& ring, int stage, int vectors, float mean, float rstd) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (k >= vectors) break;
      float x[8], dy[8], w[8];
      unpack(x, *ring.at(stage, 0, k));
      unpack(dy, *ring.at(stage, 1, k));
      unpack(w, weight[k]);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float p = dy[j] * (kCentre ? x[j] - mean : x[j]);
        sums[0] = fmaf(w[j], p, sums[0]);
        dw[k][j] = fmaf(rstd, p, dw[k][j]);
        if constexpr (kCentre) sums[1] = fmaf(w[j], dy[j], sums[1]), db[k][j] += dy[j];
      }
    }
  }
  // dx += rstd * (g - mean_g - (x - mean) * slope),  slope = rstd * mean_c(g xhat)
  __device__ void write_dx(T* dx_row, const Ring& ring, int stage, int vectors, const Team& team, float mean,
                           float rstd, float mean_g, float slope) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (k >= vectors) break;
      float x[8], dy[8], w[8], dx[8];
      unpack(x, *ring.at(stage, 0, k));
      unpack(dy, *ring.at(stage, 1, k));
      unpack(dx, *ring.at(stage, 2, k));
      unpack(w, weight[k]);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float g = kCentre ? fmaf(w[j], dy[j], -mean_g) : w[j] * dy[j];
        dx[j] = fmaf(rstd, fmaf(kCentre ? mean - x[j] : -x[j], slope, g), dx[j]);
      }
      store8(dx_row + (k * team.threads + team.rank) * 8, pack<T>(dx));
    }
  }
  // Adds the teams' sums into the block's row of `partial`. room: (teams, kSums, C), in the ring's memory.
  __device__ void finish(const NormBackward<T>& f, const Team& team, int vectors, float* room) const {
    __syncwarp();
    __syncthreads();  // all threads are done with the ring
    float* own = room + team.index * kSums * f.C;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (k >= vectors) break;
      const int c = (k * team.threads + team.rank) * 8;
      store8(own + c, pack<float>(dw[k]));
      if constexpr (kCentre) store8(own + f.C + c, pack<float>(db[k]));
    }
    __syncthreads();
    for (int c = threadIdx.x; c < kSums * f.C; c += blockDim.x) {
      float total = 0;
      for (int t = 0; t < int(blockDim.x) / team.threads; ++t) total += room[t * kSums * f.C + c];
      if (c < f.C) f.dw_partial[int64_t(blockIdx.x) * f.C + c] = total;
      else f.db_partial[int64_t(blockIdx.x) * f.C + c - f.C] = total;
    }
  }
};

template <class T, int kVectors, int kStages, int kThreads, bool kCentre>
__global__ void __launch_bounds__(kThreads) norm_backward_kernel(const NormBackward<T> f, int team_threads) {
  using Columns = NormColumns<T, kVectors, kStages, kCentre>;
  extern __shared__ uint4 dynamic[];
  __shared__ alignas(16) float room[8][2][Columns::kSums][16];  // two for each team of more than one warp
  const Team team(team_threads);
  const int teams = blockDim.x / team_threads, own = (f.C / 8 - team.rank + team_threads - 1) / team_threads;
  const int64_t step = int64_t(gridDim.x) * teams, first = int64_t(blockIdx.x) * teams + team.index;
  const RowRing<T, kVectors, kStages> ring{reinterpret_cast<Pack<T>*>(dynamic) + threadIdx.x, int(blockDim.x)};
  for (int i = threadIdx.x; i < int(sizeof room / sizeof(float)); i += blockDim.x) (&room[0][0][0][0])[i] = 0;
  __syncthreads();
  in_order();
  Columns columns(f, team);
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) ring.request(f, team, first + s * step, s);
  const float share = __frcp_rn(float(f.C));
  float rstd = first < f.N ? f.rstd[first] : 0.f, mean = kCentre && first < f.N ? f.mean[first] : 0.f;
  int stage = 0, parity = 0;
#pragma unroll 1
  for (int64_t n = first; n < f.N + team.index; n += step) {  // equally often for every team, as racecheck expects
    const int vectors = n < f.N ? own : 0;
    ring.request(f, team, n + (kStages - 1) * step, stage == 0 ? kStages - 1 : stage - 1);  // in the last row's place
    const bool more = n + step < f.N;
    const float next_rstd = more ? f.rstd[n + step] : 0.f, next_mean = kCentre && more ? f.mean[n + step] : 0.f;
    __pipeline_wait_prior(kStages - 1);
    float sums[Columns::kSums] = {};
    columns.accumulate(sums, ring, stage, vectors, mean, rstd);
    team.sum(sums, room[team.index % 8][parity]);
    const float mean_g = kCentre ? sums[Columns::kSums - 1] * share : 0.f;
    columns.write_dx(f.dx + n * f.C, ring, stage, vectors, team, mean, rstd, mean_g, rstd * rstd * sums[0] * share);
    rstd = next_rstd, mean = next_mean;
    stage = stage == kStages - 1 ? 0 : stage + 1;
    parity ^= 1;
  }
  __pipeline_wait_prior(0);
  columns.finish(f, team, own, reinterpret_cast<float*>(dynamic));
}

}  // namespace octet::BACKEND
