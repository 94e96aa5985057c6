// RMSNorm.
#include "ops/gpu/norm_backward.cuh"
#include "ops/gpu/norm_launch.cuh"

namespace octet::BACKEND {

void rmsnorm_forward(Stream& s, Operand y, Tensor rstd, Tensor x, Tensor w, double eps) {
  const int64_t N = x.rows(), C = x.cols();
  CHECK(w.numel() == C && rstd.numel() == N, x.shape, " * ", w.shape, ", rstd ", rstd.shape);
  visit<float, bf16>(x.dtype, [&]<class T>() {
    const NormForward<T> f{x.ptr<T>(), w.ptr<T>(), nullptr, nullptr, rstd.ptr<float>(), int(C), float(eps)};
    norm_forward<false>(s, y, f, N);
  });
}

void rmsnorm_backward(Stream& s, const RmsnormBackward& a) {
  const Timed timed(s, Kernel::norm);
  const int64_t N = a.x.rows(), C = a.x.cols();
  CHECK(a.dy.numel() == N * C && a.dx.numel() == N * C && a.w.numel() == C && a.dw.numel() == C, a.x.shape);
  CHECK(a.partial.numel() >= partial_rows(s.target()) * C, "partial ", a.partial.shape);
  float* partial = a.partial.ptr<float>();
  int64_t rows = 0;
  visit<float, bf16>(a.x.dtype, [&]<class T>() {
    rows = norm_backward<false>(s, NormBackward<T>{a.dx.ptr<T>(), a.dy.ptr<T>(), a.x.ptr<T>(), a.w.ptr<T>(), nullptr,
                                                   a.rstd.ptr<float>(), partial, nullptr, N, int(C)});
  });
  add_partial(s, {{a.dw, partial}}, rows);
}

}  // namespace octet::BACKEND
