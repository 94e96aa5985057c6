// Mixture of experts: routing, one thread a token, and the auxiliary losses.
#include "base/rng.h"
#include "ops/gpu/reduce.cuh"
#include "ops/moe.h"

namespace octet::BACKEND {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) jitter_kernel(T* y, const T* x, int64_t n, double eps, uint64_t seed) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i < n) y[i] = T(float(x[i]) * float(1 + eps * (2 * uniform(seed, 0, uint64_t(i)) - 1)));
}

struct Route {
  int32_t* expert;
  float *weight, *probability, *lse;
  int64_t N;
  int E, K;
};

__global__ void __launch_bounds__(kThreads) route_kernel(const Route m, const float* logits, const float* choice) {
  const int64_t n = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (n >= m.N) return;
  const float *x = logits + n * m.E, *c = choice + n * m.E;
  float* p = m.probability + n * m.E;
  float largest = x[0], sum = 0, chosen = 0;
  for (int e = 1; e < m.E; ++e) largest = fmaxf(largest, x[e]);
  for (int e = 0; e < m.E; ++e) sum += p[e] = expf(x[e] - largest);
  for (int e = 0; e < m.E; ++e) p[e] /= sum;
  m.lse[n] = largest + logf(sum);
  const auto value = [&](int e) {
    return c[e] == c[e] ? c[e] : INFINITY;
  };  // NaN as infinity: a total order, so that the K experts differ
  int before = -1;
  for (int k = 0; k < m.K; ++k) {  // the next one in the order of falling value, then rising index
    int best = -1;
    for (int e = 0; e < m.E; ++e) {
      const bool follows = before < 0 || value(e) < value(before) || (value(e) == value(before) && e > before);
      if (follows && (best < 0 || value(e) > value(best))) best = e;
    }
    before = best;
    m.expert[n * m.K + k] = best;
    chosen += m.weight[n * m.K + k] = p[best];
  }
  for (int k = 0; k < m.K; ++k) m.weight[n * m.K + k] /= chosen;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    route_backward_kernel(T* dlogits, const Route m, const float* dweight, const double* count, double balance,
                          double z, const float* loss_scale) {
  const int64_t n = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (n >= m.N) return;
  const float *p = m.probability + n * m.E, *w = m.weight + n * m.K, *dw = dweight + n * m.K;
  const int32_t* expert = m.expert + n * m.K;
  if (loss_scale) balance *= double(*loss_scale), z *= double(*loss_scale);
  float chosen = 0, mean = 0, dot = 0;
  for (int k = 0; k < m.K; ++k) chosen += p[expert[k]], mean += dw[k] * w[k];
  const auto dp = [&](int e) {
    float d = count ? float(balance * count[e]) : 0.f;
    for (int k = 0; k < m.K; ++k)
      if (expert[k] == e) d += (dw[k] - mean) / chosen;
    return d;
  };
  for (int e = 0; e < m.E; ++e) dot += p[e] * dp(e);
  const float shift = float(2 * z) * m.lse[n] - dot;
  for (int e = 0; e < m.E; ++e) dlogits[n * m.E + e] = T(p[e] * (dp(e) + shift));
}

Route route_of(const MoeRoute& m) {
  return {.expert = m.expert.ptr<int32_t>(),
          .weight = m.weight.ptr<float>(),
          .probability = m.probability.ptr<float>(),
          .lse = m.lse.ptr<float>(),
          .N = m.expert.rows(),
          .E = int(m.probability.cols()),
          .K = int(m.expert.cols())};
}

// ---- auxiliary losses
__global__ void __launch_bounds__(kThreads) add_sums_kernel(double* sums, const int32_t* count, const Route m) {
  __shared__ double room[32];
  const int e = blockIdx.x;  // block E sums lse^2
  double sum[1] = {0};
  for (int64_t n = threadIdx.x; n < m.N; n += kThreads)
    sum[0] += e < m.E ? double(m.probability[n * m.E + e]) : double(m.lse[n]) * double(m.lse[n]);
  block_sum<1>(sum, room);
  if (threadIdx.x) return;
  if (e < m.E) sums[e] += count[e];
  sums[m.E + e] += sum[0];
}
struct Losses {
  double *losses, *total, *load;
  const double* sums;
  int L, E;
  double balance, z;
  bool by_layer;
};
__global__ void __launch_bounds__(kThreads) losses_kernel(const Losses m) {  // one block
  for (int i = threadIdx.x; i < 3 * m.E; i += kThreads) {
    double sum = 0;
    for (int l = 0; l < m.L; ++l) {
      const double v = m.sums[(l * 3) * m.E + i];
      sum += v;
      if (i < m.E) m.load[l * m.E + i] += v;
    }
    m.total[i] = sum;
  }
  __syncthreads();
  if (threadIdx.x || !m.losses) return;
  double sum = 0;
  for (int l = 0; l < (m.by_layer ? m.L : 1); ++l) {
    const double* of = m.by_layer ? m.sums + l * 3 * m.E : m.total;
    for (int e = 0; e < m.E; ++e) sum += of[e] * of[m.E + e];
  }
  m.losses[0] += m.balance * sum;
  m.losses[1] += m.z * m.total[2 * m.E];
}

}  // namespace

void moe_jitter(Stream& s, Tensor y, Tensor x, double eps, uint64_t seed) {
  const Timed timed(s, Kernel::elementwise);
  CHECK(y.numel() == x.numel() && y.dtype == x.dtype, y.shape, " of ", x.shape);
  visit<float, bf16>(y.dtype, [&]<class T>() {
    jitter_kernel<<<blocks_for(y.numel(), kThreads), kThreads, 0, raw(s)>>>(y.ptr<T>(), x.ptr<T>(), y.numel(), eps,
                                                                            seed);
  });
  CUDA_CHECK(cudaGetLastError());
}

void moe_route(Stream& s, const MoeRoute& m, Tensor logits, Tensor choice) {
  const Timed timed(s, Kernel::elementwise);
  const int64_t N = logits.rows(), E = logits.cols(), K = m.expert.cols();
  CHECK(m.expert.rows() == N && m.weight.numel() == N * K && m.probability.numel() == N * E && K <= E &&
            choice.numel() == N * E,
        m.expert.shape, " of ", logits.shape);
  route_kernel<<<blocks_for(N, kThreads), kThreads, 0, raw(s)>>>(route_of(m), logits.ptr<float>(), choice.ptr<float>());
  CUDA_CHECK(cudaGetLastError());
}

void moe_route_backward(Stream& s, const MoeRouteBackward& g) {
  const Timed timed(s, Kernel::elementwise);
  const int64_t N = g.dlogits.rows(), E = g.dlogits.cols();
  CHECK(g.route.probability.numel() == N * E && g.dweight.numel() == g.route.weight.numel() &&
            (!g.count || g.count.numel() == E),
        g.dlogits.shape);
  const double* count = g.count ? g.count.ptr<double>() : nullptr;
  visit<float, bf16>(g.dlogits.dtype, [&]<class T>() {
    route_backward_kernel<<<blocks_for(N, kThreads), kThreads, 0, raw(s)>>>(
        g.dlogits.ptr<T>(), route_of(g.route), g.dweight.ptr<float>(), count, g.balance, g.z, g.loss_scale);
  });
  CUDA_CHECK(cudaGetLastError());
}

void moe_add_sums(Stream& s, Tensor sums, Tensor count, const MoeRoute& m) {
  const Timed timed(s, Kernel::elementwise);
  const int64_t E = m.probability.cols();
  CHECK(sums.numel() == 3 * E && count.numel() == E, sums.shape, " for ", m.probability.shape);
  add_sums_kernel<<<unsigned(E + 1), kThreads, 0, raw(s)>>>(sums.ptr<double>(), count.ptr<int32_t>(), route_of(m));
  CUDA_CHECK(cudaGetLastError());
}

void moe_losses(Stream& s, const MoeLosses& m) {
  const Timed timed(s, Kernel::elementwise);
  const int64_t L = m.load.rows(), E = m.load.cols();
  CHECK(m.sums.numel() == L * 3 * E && m.total.numel() == 3 * E, m.sums.shape, " into ", m.total.shape);
  losses_kernel<<<1, kThreads, 0, raw(s)>>>(Losses{.losses = m.losses ? m.losses.ptr<double>() : nullptr,
                                                   .total = m.total.ptr<double>(),
                                                   .load = m.load.ptr<double>(),
                                                   .sums = m.sums.ptr<double>(),
                                                   .L = int(L),
                                                   .E = int(E),
                                                   .balance = m.balance,
                                                   .z = m.z,
                                                   .by_layer = m.by_layer});
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace octet::BACKEND
