// LayerNorm.
#include "ops/gpu/norm_backward.cuh"
#include "ops/gpu/norm_launch.cuh"

namespace octet::BACKEND {

void layernorm_forward(Stream& s, const LayernormForward& a) {
  const int64_t N = a.x.rows(), C = a.x.cols();
  CHECK(a.w.numel() == C && a.b.numel() == C && a.mean.numel() == N && a.rstd.numel() == N, a.x.shape);
  visit<float, bf16>(a.x.dtype, [&]<class T>() {
    const NormForward<T> f{a.x.ptr<T>(),        a.w.ptr<T>(), a.b.ptr<T>(), a.mean.ptr<float>(),
                           a.rstd.ptr<float>(), int(C),       float(a.eps)};
    norm_forward<true>(s, a.y, f, N);
  });
}

void layernorm_backward(Stream& s, const LayernormBackward& a) {
  const Timed timed(s, Kernel::norm);
  const int64_t N = a.x.rows(), C = a.x.cols(), P = partial_rows(s.target());
  CHECK(a.dy.numel() == N * C && a.dx.numel() == N * C && a.dw.numel() == C && a.db.numel() == C, a.x.shape);
  CHECK(a.partial.numel() >= 2 * P * C, "partial ", a.partial.shape);
  float *dw = a.partial.ptr<float>(), *db = dw + P * C;
  int64_t rows = 0;
  visit<float, bf16>(a.x.dtype, [&]<class T>() {
    rows = norm_backward<true>(s, NormBackward<T>{a.dx.ptr<T>(), a.dy.ptr<T>(), a.x.ptr<T>(), a.w.ptr<T>(),
                                                  a.mean.ptr<float>(), a.rstd.ptr<float>(), dw, db, N, int(C)});
  });
  add_partial(s, {{a.dw, dw}, {a.db, db}}, rows);
}

}  // namespace octet::BACKEND
