// Mixture of experts: one row of routing, gathering or combining at a time.
#include "ops/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/cpu/rows.h"

namespace octet::BACKEND {

void moe_route(Stream&, const MoeRoute& m, Tensor logits, Tensor choice) {
  const int64_t N = logits.rows(), E = logits.cols(), K = m.expert.cols();
  CHECK(m.expert.rows() == N && m.weight.numel() == N * K && m.probability.numel() == N * E && K <= E &&
            choice.numel() == N * E,
        m.expert.shape, " of ", logits.shape);
  visit<double, float>(logits.dtype, [&]<class R>() {
    const R *x = logits.ptr<R>(), *c = choice.ptr<R>();
    R *p = m.probability.ptr<R>(), *w = m.weight.ptr<R>();
    int32_t* expert = m.expert.ptr<int32_t>();
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n) {
      R largest = x[n * E], sum = 0, chosen = 0;
      for (int64_t e = 1; e < E; ++e) largest = std::max(largest, x[n * E + e]);
      for (int64_t e = 0; e < E; ++e) sum += p[n * E + e] = std::exp(x[n * E + e] - largest);
      for (int64_t e = 0; e < E; ++e) p[n * E + e] /= sum;
      for (int64_t k = 0; k < K; ++k) {
        const auto before = expert + n * K;
        int64_t best = -1;
        for (int64_t e = 0; e < E; ++e)
          if (std::find(before, before + k, e) == before + k && (best < 0 || c[n * E + e] > c[n * E + best])) best = e;
        expert[n * K + k] = int32_t(best);
        chosen += w[n * K + k] = p[n * E + best];
      }
      for (int64_t k = 0; k < K; ++k) w[n * K + k] /= chosen;
    }
  });
}

void moe_route_backward(Stream&, Tensor dlogits, const MoeRoute& m, Tensor dweight, Tensor balance, double factor) {
  const int64_t N = dlogits.rows(), E = dlogits.cols(), K = m.expert.cols();
  CHECK(m.probability.numel() == N * E && dweight.numel() == N * K && (!balance || balance.cols() == E), dlogits.shape);
  const int32_t* expert = m.expert.ptr<int32_t>();
  const double* counts = balance ? balance.ptr<double>() : nullptr;
  visit_plain(dlogits.dtype, [&]<class T>() {
    using R = Real<T>;
    const R *p = m.probability.ptr<R>(), *w = m.weight.ptr<R>(), *dw = dweight.ptr<R>();
    T* out = dlogits.ptr<T>();
#pragma omp parallel
    {
      const auto dp = buffer<R>(E);
#pragma omp for schedule(static)
      for (int64_t n = 0; n < N; ++n) {
        R chosen = 0, mean = 0, dot = 0;
        for (int64_t k = 0; k < K; ++k) chosen += p[n * E + expert[n * K + k]], mean += dw[n * K + k] * w[n * K + k];
        for (int64_t e = 0; e < E; ++e) dp[e] = counts ? R(factor * counts[e]) : R(0);
        for (int64_t k = 0; k < K; ++k) dp[expert[n * K + k]] += (dw[n * K + k] - mean) / chosen;
        for (int64_t e = 0; e < E; ++e) dot += p[n * E + e] * dp[e];
        for (int64_t e = 0; e < E; ++e) out[n * E + e] = T(p[n * E + e] * (dp[e] - dot));
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

void moe_add_balance(Stream&, Tensor balance, Tensor count, Tensor probability) {
  const int64_t N = probability.rows(), E = probability.cols();
  CHECK(balance.numel() == 2 * E && count.numel() == E, balance.shape, " for ", probability.shape);
  double* b = balance.ptr<double>();
  visit<double, float>(probability.dtype, [&]<class R>() {
    const R* p = probability.ptr<R>();
    for (int64_t e = 0; e < E; ++e) {
      b[e] += count.ptr<int32_t>()[e];
      b[E + e] += lane_sum<double>(N, [&](int64_t n) { return double(p[n * E + e]); });
    }
  });
}

void moe_balance_loss(Stream&, Tensor loss, Tensor balance, double factor) {
  const int64_t E = balance.cols();
  const double* b = balance.ptr<double>();
  *loss.ptr<double>() += factor * std::inner_product(b, b + E, b + E, 0.);
}

}  // namespace octet::BACKEND
