// SwiGLU and GELU, element by element.
#include "ops/cpu/emit.h"
#include "ops/formulas.h"

namespace octet::BACKEND {

void swiglu_forward(Stream&, Operand y, Tensor gu) {
  const int64_t N = gu.rows(), F = gu.cols() / 2;
  visit_plain(gu.dtype, [&]<class T>() {
    using R = Real<T>;
    const T* in = gu.ptr<T>();
    emit_rows<T>(y, N, F, [=](int64_t n, R* v) {
      const T *g = in + n * 2 * F, *u = g + F;
      for (int64_t f = 0; f < F; ++f) v[f] = R(g[f]) / (R(1) + fast_exp(-R(g[f]))) * R(u[f]);
    });
  });
}

void swiglu_backward(Stream&, Operand dgu, Tensor dy, Tensor gu) {
  const int64_t N = dy.rows(), F = dy.cols();
  CHECK(gu.rows() == N && gu.cols() == 2 * F, gu.shape, " for ", dy.shape);
  visit_plain(gu.dtype, [&]<class T>() {
    using R = Real<T>;
    const T *in = gu.ptr<T>(), *out = dy.ptr<T>();
    emit_rows<T>(dgu, N, 2 * F, [=](int64_t n, R* v) {
      const T *g = in + n * 2 * F, *u = g + F, *d = out + n * F;
      for (int64_t f = 0; f < F; ++f) {  // silu' = s (1 + g (1 - s))
        const R x = R(g[f]), s = R(1) / (R(1) + fast_exp(-x));
        v[f] = R(d[f]) * R(u[f]) * (s * (R(1) + x * (R(1) - s)));
        v[F + f] = R(d[f]) * (x * s);
      }
    });
  });
}

void gelu_forward(Stream&, Operand y, Tensor x, Gelu kind) {
  const int64_t F = x.cols();
  visit_plain(x.dtype, [&]<class T>() {
    using R = Real<T>;
    const T* in = x.ptr<T>();
    emit_rows<T>(y, x.rows(), F, [=](int64_t n, R* v) {
      widen(v, in + n * F, F);
      if (kind == Gelu::exact)
        for (int64_t f = 0; f < F; ++f) v[f] = gelu(v[f]);
      else
        for (int64_t f = 0; f < F; ++f) v[f] = gelu_tanh(v[f]);
    });
  });
}

void gelu_backward(Stream&, Operand dx, Tensor dy, Tensor x, Gelu kind) {
  const int64_t F = x.cols();
  CHECK(dy.numel() == x.numel(), dy.shape, " for ", x.shape);
  visit_plain(x.dtype, [&]<class T>() {
    using R = Real<T>;
    const T *in = x.ptr<T>(), *out = dy.ptr<T>();
    emit_rows<T>(dx, x.rows(), F, [=](int64_t n, R* v) {
      widen(v, in + n * F, F);
      const T* d = out + n * F;
      if (kind == Gelu::exact)
        for (int64_t f = 0; f < F; ++f) v[f] = R(d[f]) * gelu_grad(v[f]);
      else
        for (int64_t f = 0; f < F; ++f) v[f] = R(d[f]) * gelu_tanh_grad(v[f]);
    });
  });
}

}  // namespace octet::BACKEND
