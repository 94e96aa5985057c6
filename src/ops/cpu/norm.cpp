// RMSNorm and LayerNorm. Backward computes the sums over a row, then dx in place; dw and db are summed in row chunks.
#include "ops/cpu/chunks.h"
#include "ops/cpu/emit.h"

namespace octet::BACKEND {

void rmsnorm_forward(Stream&, Operand y, Tensor rstd, Tensor x, Tensor w, double eps) {
  const int64_t N = x.rows(), C = x.cols();
  CHECK(w.numel() == C && rstd.numel() == N, x.shape, " * ", w.shape, ", rstd ", rstd.shape);
  visit_plain(x.dtype, [&]<class T>() {
    using R = Real<T>;
    const T *xs = x.ptr<T>(), *wp = w.ptr<T>();
    R* rs = rstd.ptr<R>();
    emit_rows<T>(y, N, C, [=](int64_t n, R* v) {
      widen(v, xs + n * C, C);
      const R squares = lane_sum<R>(C, [=](int64_t c) { return v[c] * v[c]; });
      const R r = rs[n] = R(1) / std::sqrt(squares / R(C) + R(eps));
      for (int64_t c = 0; c < C; ++c) v[c] = v[c] * r * R(wp[c]);
    });
  });
}

void rmsnorm_backward(Stream& s, const RmsnormBackward& a) {
  const int64_t N = a.x.rows(), C = a.x.cols();
  CHECK(a.dy.numel() == N * C && a.dx.numel() == N * C && a.w.numel() == C && a.dw.numel() == C, a.x.shape);
  visit_plain(a.x.dtype, [&]<class T>() {
    using R = Real<T>;
    T* dxs = a.dx.ptr<T>();
    const T *dys = a.dy.ptr<T>(), *xs = a.x.ptr<T>(), *w = a.w.ptr<T>();
    const R* rstd = a.rstd.ptr<R>();
    sum_chunks<R>(s, a.partial, N, C, [=](int64_t n, R* dw) {
      T* dx = dxs + n * C;
      const T *dy = dys + n * C, *x = xs + n * C;
      const R r = rstd[n];
      const R mean = lane_sum<R>(C, [=](int64_t c) { return R(w[c]) * R(dy[c]) * (R(x[c]) * r); }) / R(C);
      for (int64_t c = 0; c < C; ++c) {
        const R xhat = R(x[c]) * r;
        dx[c] = T(R(dx[c]) + r * (R(w[c]) * R(dy[c]) - xhat * mean));
        dw[c] += R(dy[c]) * xhat;
      }
    });
    add_chunks(a.dw, a.partial.ptr<R>(), partial_rows(s.target()), C);
  });
}

void layernorm_forward(Stream&, const LayernormForward& a) {
  const int64_t N = a.x.rows(), C = a.x.cols();
  CHECK(a.w.numel() == C && a.b.numel() == C && a.mean.numel() == N && a.rstd.numel() == N, a.x.shape);
  visit_plain(a.x.dtype, [&]<class T>() {
    using R = Real<T>;
    const T *xs = a.x.ptr<T>(), *w = a.w.ptr<T>(), *b = a.b.ptr<T>();
    R *means = a.mean.ptr<R>(), *rstds = a.rstd.ptr<R>();
    emit_rows<T>(a.y, N, C, [=, eps = R(a.eps)](int64_t n, R* v) {
      widen(v, xs + n * C, C);
      const R mean = means[n] = lane_sum<R>(C, [=](int64_t c) { return v[c]; }) / R(C);
      const R variance = lane_sum<R>(C, [=](int64_t c) { return (v[c] - mean) * (v[c] - mean); }) / R(C);
      const R r = rstds[n] = R(1) / std::sqrt(variance + eps);
      for (int64_t c = 0; c < C; ++c) v[c] = (v[c] - mean) * r * R(w[c]) + R(b[c]);
    });
  });
}

void layernorm_backward(Stream& s, const LayernormBackward& a) {
  const int64_t N = a.x.rows(), C = a.x.cols(), P = partial_rows(s.target());
  CHECK(a.dy.numel() == N * C && a.dx.numel() == N * C && a.dw.numel() == C && a.db.numel() == C, a.x.shape);
  visit_plain(a.x.dtype, [&]<class T>() {
    using R = Real<T>;
    T* dxs = a.dx.ptr<T>();
    const T *dys = a.dy.ptr<T>(), *xs = a.x.ptr<T>(), *w = a.w.ptr<T>();
    const R *means = a.mean.ptr<R>(), *rstds = a.rstd.ptr<R>();
    sum_chunks<R>(s, a.partial, N, 2 * C, [=](int64_t n, R* dw) {
      R* db = dw + C;
      T* dx = dxs + n * C;
      const T *dy = dys + n * C, *x = xs + n * C;
      const R r = rstds[n], m = means[n];
      const R g = lane_sum<R>(C, [=](int64_t c) { return R(w[c]) * R(dy[c]); }) / R(C);
      const R gx = lane_sum<R>(C, [=](int64_t c) { return R(w[c]) * R(dy[c]) * ((R(x[c]) - m) * r); }) / R(C);
      for (int64_t c = 0; c < C; ++c) {
        const R xhat = (R(x[c]) - m) * r;
        dx[c] = T(R(dx[c]) + r * (R(w[c]) * R(dy[c]) - g - xhat * gx));
        dw[c] += R(dy[c]) * xhat;
        db[c] += R(dy[c]);
      }
    });
    add_chunks(a.dw, a.partial.ptr<R>(), P, 2 * C);
    add_chunks(a.db, a.partial.ptr<R>() + C, P, 2 * C);
  });
}

}  // namespace octet::BACKEND
