#pragma once
// RMSNorm and LayerNorm (kCentre), backward: the choice of kernel by row size and alignment.
#include "device/gpu_code.h"
#include "ops/gpu/norm_backward_teams.cuh"
#include "ops/workspace.h"

namespace octet::BACKEND {

// Any C and alignment: sums of columns are kept in global memory, in the block's row of `partial`.
template <class T, bool kCentre>
__global__ void __launch_bounds__(256) norm_backward_any_kernel(const NormBackward<T> f) {
  __shared__ float room[2][64];
  in_order();
  float* dw = f.dw_partial + int64_t(blockIdx.x) * f.C;
  float* db = kCentre ? f.db_partial + int64_t(blockIdx.x) * f.C : nullptr;
  for (int c = threadIdx.x; c < f.C; c += 256) {
    dw[c] = 0;
    if constexpr (kCentre) db[c] = 0;
  }
  int parity = 0;
  for (int64_t n = blockIdx.x; n < f.N; n += gridDim.x) {
    const int64_t base = n * f.C;
    const float rstd = f.rstd[n], mean = kCentre ? f.mean[n] : 0.f;
    float sums[2] = {};
    for (int c = threadIdx.x; c < f.C; c += 256) {
      const float xhat = normal_form<kCentre>(float(f.x[base + c]), mean, rstd), dy = float(f.dy[base + c]);
      sums[0] += float(f.w[c]) * dy * xhat;
      sums[1] += float(f.w[c]) * dy;
      dw[c] += dy * xhat;
      if constexpr (kCentre) db[c] += dy;
    }
    block_sum(sums, room[parity]);
    const float mean_gx = sums[0] / float(f.C), mean_g = kCentre ? sums[1] / float(f.C) : 0.f;
    for (int c = threadIdx.x; c < f.C; c += 256) {
      const float xhat = normal_form<kCentre>(float(f.x[base + c]), mean, rstd);
      T& dx = f.dx[base + c];
      dx = T(float(dx) + rstd * (float(f.w[c]) * float(f.dy[base + c]) - mean_g - xhat * mean_gx));
    }
    parity ^= 1;
  }
}

template <class T, int kVectors, int kThreads, bool kCentre>
int64_t launch_norm_backward(Stream& s, const NormBackward<T>& f) {
  constexpr int kStages = 2;
  const int64_t team = ceil_div(ceil_div(f.C / 8, kVectors), 32) * 32, teams = kThreads / team;
  const int64_t blocks = std::min<int64_t>(s.target().multiprocessors, ceil_div(f.N, teams));
  const size_t shared = size_t(kStages * 3 * kVectors * team * teams) * sizeof(Pack<T>);
  const auto kernel = norm_backward_kernel<T, kVectors, kStages, kThreads, kCentre>;
  allow_shared(kernel, shared);
  launch_pdl(s, kernel, {unsigned(blocks), unsigned(team * teams), shared}, f, int(team));
  return blocks;
}

// Writes dx, and rows of partial sums of dw and db (P,C); returns their number. Two vectors a thread were fastest on an
// H200 from 768 to 6144 columns: with fewer, sums over a team cost more; with more, there are too few warps. One vector
// where shared memory is small. RMSNorm's registers, in bf16, allow 768 threads, so that two teams fit up to 6144
// columns; LayerNorm's would spill.
template <bool kCentre, class T>
int64_t norm_backward(Stream& s, const NormBackward<T>& f) {
  const int64_t room = shared_room(s.target().compute_capability);
  const auto fits = [&](int64_t vectors) {  // two rows of each team
    return 2 * 3 * vectors * 512 * int64_t(sizeof(Pack<T>)) <= room - 5120;
  };
  const bool fast = f.C % 8 == 0 && aligned({f.dx, f.dy, f.x, f.w, f.dw_partial, f.db_partial});
  int64_t blocks = std::min(partial_rows(s.target()), f.N);
  if (f.N == 0) return 0;
  constexpr int kMost = kCentre || sizeof(T) > 2 ? 512 : 768;
  if (fast && f.C > 4096 && f.C <= 6144 && fits(3)) blocks = launch_norm_backward<T, 2, kMost, kCentre>(s, f);
  else if (fast && f.C <= 8192 && fits(2)) blocks = launch_norm_backward<T, 2, 512, kCentre>(s, f);
  else if (fast && f.C <= 4096 && fits(1)) blocks = launch_norm_backward<T, 1, 512, kCentre>(s, f);
  else launch_pdl(s, norm_backward_any_kernel<T, kCentre>, {unsigned(blocks), 256}, f);
  return blocks;
}

}  // namespace octet::BACKEND
