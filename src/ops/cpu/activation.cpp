// SwiGLU and GELU. The functions of formulas.h in forms that vectorise, by the sigmoid and Phi of fast_math.h:
// (1 + tanh u) / 2 = sigmoid(2u).
#include "ops/cpu/emit.h"
#include "ops/cpu/fast_math.h"

namespace octet::BACKEND {

namespace {

template <class R>
[[gnu::always_inline]] inline R gelu_exact(R x) {
  return x * fast_phi(x);
}
template <class R>
[[gnu::always_inline]] inline R gelu_exact_grad(R x) {
  return fast_phi(x) + x * R(0.3989422804014326779) * fast_exp(R(-0.5) * x * x);
}
constexpr double kTwice = 2 * 0.7978845608028653559, kCubic = 0.044715;  // 2u = kTwice * (x + kCubic x^3)
template <class R>
[[gnu::always_inline]] inline R gelu_sigmoid(R x) {
  return x * fast_sigmoid(R(kTwice) * (x + R(kCubic) * x * x * x));
}
template <class R>
[[gnu::always_inline]] inline R gelu_sigmoid_grad(R x) {
  const R s = fast_sigmoid(R(kTwice) * (x + R(kCubic) * x * x * x));
  return s + x * s * (R(1) - s) * R(kTwice) * (R(1) + R(3 * kCubic) * x * x);
}

}  // namespace

void swiglu_forward(Stream&, Operand y, Tensor gu) {
  const int64_t N = gu.rows(), F = gu.cols() / 2;
  visit_plain(gu.dtype, [&]<class T>() {
    using R = Real<T>;
    const T* in = gu.ptr<T>();
    emit_rows<T>(y, N, F, [=](int64_t n, R* v) {
      const T *g = in + n * 2 * F, *u = g + F;
      for (int64_t f = 0; f < F; ++f) v[f] = R(g[f]) * fast_sigmoid(R(g[f])) * R(u[f]);
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
        const R x = R(g[f]), s = fast_sigmoid(x);
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
        for (int64_t f = 0; f < F; ++f) v[f] = gelu_exact(v[f]);
      else
        for (int64_t f = 0; f < F; ++f) v[f] = gelu_sigmoid(v[f]);
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
        for (int64_t f = 0; f < F; ++f) v[f] = R(d[f]) * gelu_exact_grad(v[f]);
      else
        for (int64_t f = 0; f < F; ++f) v[f] = R(d[f]) * gelu_sigmoid_grad(v[f]);
    });
  });
}

}  // namespace octet::BACKEND
