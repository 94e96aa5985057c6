// Mixture of experts: one row of routing, gathering or combining at a time.
#include "ops/moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/rng.h"
#include "ops/cpu/rows.h"

namespace octet::BACKEND {

void moe_jitter(Stream&, Tensor y, Tensor x, double eps, uint64_t seed) {
  CHECK(y.numel() == x.numel() && y.dtype == x.dtype, y.shape, " of ", x.shape);
  visit_plain(y.dtype, [&]<class T>() {
    using R = Real<T>;
    const T* in = x.ptr<T>();
    T* out = y.ptr<T>();
#pragma omp parallel for
    for (int64_t i = 0; i < y.numel(); ++i) out[i] = T(R(in[i]) * R(1 + eps * (2 * uniform(seed, 0, uint64_t(i)) - 1)));
  });
}

void moe_route(Stream&, const MoeRoute& m, Tensor logits, Tensor choice) {
  const int64_t N = logits.rows(), E = logits.cols(), K = m.expert.cols();
  CHECK(m.expert.rows() == N && m.weight.numel() == N * K && m.probability.numel() == N * E && K <= E &&
            choice.numel() == N * E,
        m.expert.shape, " of ", logits.shape);
  visit<double, float>(logits.dtype, [&]<class R>() {
    const R *x = logits.ptr<R>(), *c = choice.ptr<R>();
    R *p = m.probability.ptr<R>(), *w = m.weight.ptr<R>(), *lse = m.lse.ptr<R>();
    int32_t* expert = m.expert.ptr<int32_t>();
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n) {
      const auto value = [&](int64_t e) { return std::isnan(c[n * E + e]) ? R(INFINITY) : c[n * E + e]; };
      R largest = x[n * E], sum = 0, chosen = 0;
      for (int64_t e = 1; e < E; ++e) largest = std::max(largest, x[n * E + e]);
      for (int64_t e = 0; e < E; ++e) sum += p[n * E + e] = std::exp(x[n * E + e] - largest);
      for (int64_t e = 0; e < E; ++e) p[n * E + e] /= sum;
      lse[n] = largest + std::log(sum);
      for (int64_t k = 0; k < K; ++k) {
        const auto before = expert + n * K;
        int64_t best = -1;
        for (int64_t e = 0; e < E; ++e)
          if (std::find(before, before + k, e) == before + k && (best < 0 || value(e) > value(best))) best = e;
        expert[n * K + k] = int32_t(best);
        chosen += w[n * K + k] = p[n * E + best];
      }
      for (int64_t k = 0; k < K; ++k) w[n * K + k] /= chosen;
    }
  });
}

void moe_route_backward(Stream&, const MoeRouteBackward& g) {
  const MoeRoute& m = g.route;
  const int64_t N = g.dlogits.rows(), E = g.dlogits.cols(), K = m.expert.cols();
  CHECK(m.probability.numel() == N * E && g.dweight.numel() == N * K && (!g.count || g.count.numel() == E),
        g.dlogits.shape);
  const double scale = g.loss_scale ? double(*g.loss_scale) : 1., balance = g.balance * scale, z = g.z * scale;
  const int32_t* expert = m.expert.ptr<int32_t>();
  const double* count = g.count ? g.count.ptr<double>() : nullptr;
  visit_plain(g.dlogits.dtype, [&]<class T>() {
    using R = Real<T>;
    const R *p = m.probability.ptr<R>(), *w = m.weight.ptr<R>(), *lse = m.lse.ptr<R>(), *dw = g.dweight.ptr<R>();
    T* out = g.dlogits.ptr<T>();
#pragma omp parallel
    {
      const auto dp = buffer<R>(E);
#pragma omp for schedule(static)
      for (int64_t n = 0; n < N; ++n) {
        R chosen = 0, mean = 0, dot = 0;
        for (int64_t k = 0; k < K; ++k) chosen += p[n * E + expert[n * K + k]], mean += dw[n * K + k] * w[n * K + k];
        for (int64_t e = 0; e < E; ++e) dp[e] = count ? R(balance * count[e]) : R(0);
        for (int64_t k = 0; k < K; ++k) dp[expert[n * K + k]] += (dw[n * K + k] - mean) / chosen;
        for (int64_t e = 0; e < E; ++e) dot += p[n * E + e] * dp[e];
        const R shift = R(2 * z) * lse[n] - dot;
        for (int64_t e = 0; e < E; ++e) out[n * E + e] = T(p[n * E + e] * (dp[e] + shift));
      }
    }
  });
}

void moe_sort(Stream&, const MoeRows& m, Tensor expert) {
  const int64_t assignments = expert.numel(), E = m.count.numel(), R = m.source.numel();
  CHECK(m.offset.numel() == E + 1 && m.row.numel() == assignments && R >= expert_rows(expert.rows(), E, expert.cols()),
        R, " rows for ", assignments, " assignments");
  const int32_t* e = expert.ptr<int32_t>();
  int32_t *count = m.count.ptr<int32_t>(), *offset = m.offset.ptr<int32_t>();
  std::fill_n(count, E, 0);
  for (int64_t i = 0; i < assignments; ++i) ++count[e[i]];
  offset[0] = 0;
  for (int64_t i = 0; i < E; ++i) offset[i + 1] = offset[i] + int32_t(padded_rows(count[i]));
  std::vector<int32_t> next(offset, offset + E);
  std::fill_n(m.source.ptr<int32_t>(), R, -1);
  for (int64_t i = 0; i < assignments; ++i) {
    m.row.ptr<int32_t>()[i] = next[size_t(e[i])];
    m.source.ptr<int32_t>()[next[size_t(e[i])]++] = int32_t(i);
  }
}

std::vector<int64_t> moe_offsets(Stream&, int32_t*, Tensor offset, int64_t) {
  const int32_t* o = offset.ptr<int32_t>();
  return {o, o + offset.numel()};
}

void moe_fetch_offsets(Stream&, int32_t* pinned, Tensor offset, int64_t) {
  std::memcpy(pinned, offset.data, offset.bytes());
}

void moe_gather(Stream&, Tensor y, Tensor x, Tensor source, int64_t K) {
  const int64_t R = y.rows(), C = y.cols();
  CHECK(source.numel() == R && x.cols() == C && x.dtype == y.dtype, y.shape, " of ", x.shape);
  const int32_t* from = source.ptr<int32_t>();
  visit_plain(y.dtype, [&]<class T>() {
    const T* in = x.ptr<T>();
    T* out = y.ptr<T>();
#pragma omp parallel for
    for (int64_t r = 0; r < R; ++r) {
      if (from[r] < 0) std::fill_n(out + r * C, C, T(Real<T>(0)));
      else std::copy_n(in + from[r] / K * C, C, out + r * C);
    }
  });
}

void moe_combine(Stream&, Tensor y, Tensor o, Tensor row, Tensor weight, Tensor residual) {
  const int64_t N = y.rows(), C = y.cols(), K = row.cols();
  CHECK(row.rows() == N && o.cols() == C && (!weight || weight.numel() == N * K) &&
            (!residual || residual.numel() == N * C),
        y.shape, " of ", o.shape);
  const int32_t* rows = row.ptr<int32_t>();
  visit_plain(y.dtype, [&]<class T>() {
    using R = Real<T>;
    const R* w = weight ? weight.ptr<R>() : nullptr;
    const T *in = o.ptr<T>(), *add = residual ? residual.ptr<T>() : nullptr;
    T* out = y.ptr<T>();
#pragma omp parallel
    {
      const auto sum = buffer<R>(C);
#pragma omp for schedule(static)
      for (int64_t n = 0; n < N; ++n) {
        std::fill_n(sum.get(), C, R(0));
        for (int64_t k = 0; k < K; ++k) {
          const T* v = in + rows[n * K + k] * C;
          const R share = w ? w[n * K + k] : R(1);
          for (int64_t c = 0; c < C; ++c) sum[c] += share * R(v[c]);
        }
        if (add)
          for (int64_t c = 0; c < C; ++c) sum[c] += R(add[n * C + c]);
        narrow(out + n * C, sum.get(), C);
      }
    }
  });
}

void moe_combine_backward(Stream&, const MoeCombineBackward& g) {
  const int64_t R = g.d_o.rows(), C = g.d_o.cols(), K = g.weight.cols();
  CHECK(g.source.numel() == R && g.o.rows() == R && g.o.cols() == C && g.dy.cols() == C, g.d_o.shape, " of ",
        g.dy.shape);
  const int32_t* source = g.source.ptr<int32_t>();
  visit_plain(g.dy.dtype, [&]<class T>() {
    using W = Real<T>;
    const T *dy = g.dy.ptr<T>(), *o = g.o.ptr<T>();
    const W* w = g.weight.ptr<W>();
    T* out = g.d_o.ptr<T>();
    W* dw = g.dweight.ptr<W>();
#pragma omp parallel for
    for (int64_t r = 0; r < R; ++r) {
      const int32_t s = source[r];
      if (s < 0) {
        std::fill_n(out + r * C, C, T(W(0)));
        continue;
      }
      const T *d = dy + s / K * C, *v = o + r * C;
      for (int64_t c = 0; c < C; ++c) out[r * C + c] = T(w[s] * W(d[c]));
      dw[s] = lane_sum<W>(C, [&](int64_t c) { return W(d[c]) * W(v[c]); });
    }
  });
}

void moe_add_sums(Stream&, Tensor sums, Tensor count, const MoeRoute& m) {
  const int64_t N = m.probability.rows(), E = m.probability.cols();
  CHECK(sums.numel() == 3 * E && count.numel() == E, sums.shape, " for ", m.probability.shape);
  double* total = sums.ptr<double>();
  visit<double, float>(m.probability.dtype, [&]<class R>() {
    const R *p = m.probability.ptr<R>(), *lse = m.lse.ptr<R>();
    for (int64_t e = 0; e < E; ++e) {
      total[e] += count.ptr<int32_t>()[e];
      total[E + e] += lane_sum<double>(N, [&](int64_t n) { return double(p[n * E + e]); });
    }
    total[2 * E] += lane_sum<double>(N, [&](int64_t n) { return double(lse[n]) * double(lse[n]); });
  });
}

void moe_losses(Stream&, const MoeLosses& m) {
  const int64_t L = m.load.rows(), E = m.load.cols();
  CHECK(m.sums.numel() == L * 3 * E && m.total.numel() == 3 * E, m.sums.shape, " into ", m.total.shape);
  double *total = m.total.ptr<double>(), *load = m.load.ptr<double>();
  const double* sums = m.sums.ptr<double>();
  std::fill_n(total, 3 * E, 0.);
  for (int64_t l = 0; l < L; ++l) {
    for (int64_t i = 0; i < 3 * E; ++i) total[i] += sums[l * 3 * E + i];
    for (int64_t e = 0; e < E; ++e) load[l * E + e] += sums[l * 3 * E + e];
  }
  if (!m.losses) return;
  double balance = 0;
  for (int64_t l = 0; l < (m.by_layer ? L : 1); ++l) {
    const double* of = m.by_layer ? sums + l * 3 * E : total;
    balance = std::inner_product(of, of + E, of + E, balance);
  }
  m.losses.ptr<double>()[0] += m.balance * balance;
  m.losses.ptr<double>()[1] += m.z * total[2 * E];
}

}  // namespace octet::BACKEND
