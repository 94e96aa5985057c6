#pragma once
// RMSNorm and LayerNorm (kCentre), forward: the choice of kernel by row size and alignment, and the transposed form.
#include "ops/gpu/norm_warp.cuh"

namespace octet::BACKEND {

// A producer that computes y again from the saved statistics: for a transposed form without a row-wise one.
template <class T, bool kCentre>
struct Normalised {
  static constexpr int kWays = 1;
  using Raw = Pack<T>;
  NormForward<T> f;
  int units;
  __device__ Place place(int unit) const { return {{unit * 8}, {min(8, f.C - unit * 8)}}; }
  template <bool kFast>
  __device__ void load(Raw& raw, int64_t n, const Place& p) const {
    raw = BACKEND::load<kFast>(f.x + n * f.C + p.col[0], p.count[0]);
  }
  __device__ void compute(float (&y)[1][8], const Raw& raw, int64_t n, const Place& p) const {
    unpack(y[0], raw);
    const float rstd = f.rstd[n], mean = kCentre ? f.mean[n] : 0.f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j >= p.count[0]) continue;
      y[0][j] = normal_form<kCentre>(y[0][j], mean, rstd) * float(f.w[p.col[0] + j]);
      if constexpr (kCentre) y[0][j] += float(f.b[p.col[0] + j]);
    }
  }
};

template <bool kCentre, int kVectors, bool kLate, class T>
void launch_norm_forward_block(Stream& s, const NormForward<T>& f, const Sink<T>& out) {
  const unsigned threads = unsigned(ceil_div(ceil_div(f.C / 8, kVectors), 32) * 32);
  const auto kernel = out.format == DType::e5m2 ? norm_forward_kernel<T, DType::e5m2, kVectors, kCentre, kLate>
                                                : norm_forward_kernel<T, DType::e4m3, kVectors, kCentre, kLate>;
  launch_pdl(s, kernel, {unsigned(out.rows), threads}, f, out);
}

// One wave of thread blocks, whose warps loop over rows.
template <bool kCentre, int kVectors, int kBlocks, class T>
void launch_norm_forward_warp(Stream& s, const NormForward<T>& f, const Sink<T>& out) {
  const unsigned blocks = unsigned(std::min<int64_t>(kBlocks * s.target().multiprocessors, ceil_div(out.rows, 4)));
  const auto kernel = out.format == DType::e5m2
                          ? norm_forward_warp_kernel<T, DType::e5m2, kVectors, kCentre, true, kBlocks>
                          : norm_forward_warp_kernel<T, DType::e4m3, kVectors, kCentre, true, kBlocks>;
  launch_pdl(s, kernel, {blocks, 128}, f, out);
}

// The fastest on an H200 at 768, 2048, 4096 and 6144 columns. Short rows take a warp each, as a block would mostly wait
// at its barriers; for long rows four vectors a thread keep most rows in flight.
template <bool kCentre, class T>
void launch_norm_forward(Stream& s, const NormForward<T>& f, const Sink<T>& out) {
  if (f.C <= 1024) {
    if constexpr (sizeof(T) == 2) launch_norm_forward_warp<kCentre, 4, 5>(s, f, out);
    else launch_norm_forward_block<kCentre, 1, true>(s, f, out);  // an fp32 row is too much for a warp's registers
    return;
  }
  if constexpr (!kCentre)
    if (!out.q) {
      if (f.C <= 2048) return launch_norm_forward_block<false, 2, false>(s, f, out);
      return launch_norm_forward_block<false, 4, false>(s, f, out);
    }
  launch_norm_forward_block<kCentre, 4, true>(s, f, out);
}

template <bool kCentre, class T>
void norm_forward(Stream& s, const Operand& y, const NormForward<T>& f, int64_t N) {
  Operand by_rows = y;
  by_rows.q_t = {};
  const Sink<T> out(by_rows, N, f.C);
  const bool fast = f.C % 8 == 0 && f.C <= 4 * 8 * 512 && out.fast() && aligned({f.x, f.w, f.b});
  if (N == 0) return;
  {
    const Timed timed(s, Kernel::norm);
    if (!fast) launch_pdl(s, norm_forward_any_kernel<T, kCentre>, {unsigned(N), 256}, f, out);
    else launch_norm_forward<kCentre>(s, f, out);
  }
  if (!y.q_t) return;
  if (y.q) {
    transpose(s, y.q_t, y.q);
    return;
  }
  const Timed timed(s, Kernel::norm);
  Operand transposed = y;
  transposed.plain = {}, transposed.slot.amax = nullptr;  // both have been written
  produce(s, Normalised<T, kCentre>{f, int(ceil_div(f.C, 8))}, Sink<T>(transposed, N, f.C),
          f.C % 8 == 0 && aligned({f.x}));
}

}  // namespace octet::BACKEND
