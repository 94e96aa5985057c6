// SwiGLU and GELU. With bf16 activations, exp and the reciprocal are the hardware's own (relative error about 1e-6, far
// below bf16 and FP8); with fp32 they are correctly rounded, or nearly.
#include "ops/formulas.h"
#include "ops/gpu/producer.cuh"

namespace octet::BACKEND {

namespace {

template <class T>
__device__ inline float sigmoid_of(float x) {
  if constexpr (sizeof(T) == 4) return sigmoid(x);
  else return __fdividef(1.f, 1.f + __expf(-x));
}
// Phi(x) = erfc(-x/sqrt(2)) / 2 for bf16, relative error about 1e-6 (1e-5 at x = -12):  erfc(z) = t * 2^(g(t) - z^2
// log2(e)),  t = 1/(1 + z/2),  z >= 0.  g is a polynomial through Chebyshev's nodes of 0 <= z <= 9.6, off by at most
// 2.3e-7 there.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float normal_cdf_approx(float x) {
  constexpr float kHalfLog2e = 0.72134752f;
  const float t = __fdividef(1.f, fmaf(fabsf(x), 0.35355339f, 1.f));
  float g = fmaf(0.121884943f, t, -0.842073574f);
  g = fmaf(fmaf(g, t, 2.21296171f), t, -2.66726388f);
  g = fmaf(fmaf(g, t, 1.29573409f), t, -0.368213561f);
  g = fmaf(fmaf(fmaf(g, t, 0.640562395f), t, 1.43164314f), t, -1.82523549f);
  const float tail = 0.5f * t * exp2_approx(fmaf(-kHalfLog2e * x, x, g));  // Phi(-|x|)
  return x > 0 ? 1.f - tail : tail;
}
template <Gelu kKind, class T>
__device__ inline float gelu_of(float x) {
  if constexpr (sizeof(T) == 4) return kKind == Gelu::exact ? gelu(x) : gelu_tanh(x);
  else if constexpr (kKind == Gelu::exact) return x * normal_cdf_approx(x);
  else return x * sigmoid_of<T>(1.5957691216057308f * (x + 0.044715f * x * x * x));  // (1 + tanh u)/2 = sigmoid(2u)
}
template <Gelu kKind, class T>
__device__ inline float gelu_grad_of(float x) {
  if constexpr (sizeof(T) == 4) return kKind == Gelu::exact ? gelu_grad(x) : gelu_tanh_grad(x);
  else if constexpr (kKind == Gelu::exact)
    return fmaf(x * 0.39894228f, exp2_approx(-0.72134752f * x * x), normal_cdf_approx(x));
  const float s = sigmoid_of<T>(1.5957691216057308f * (x + 0.044715f * x * x * x));
  return s + x * s * (1.f - s) * 1.5957691216057308f * (1.f + 0.134145f * x * x);
}

template <class T>
struct SwigluForward {
  static constexpr int kWays = 1;
  struct Raw {
    Pack<T> g, u;
  };
  const T* gu;  // (N,2F)
  int F, units;
  __device__ Place place(int unit) const { return {{unit * 8}, {min(8, F - unit * 8)}}; }
  template <bool kFast>
  __device__ void load(Raw& raw, int64_t n, const Place& p) const {
    const T* g = gu + n * 2 * F + p.col[0];
    raw.g = BACKEND::load<kFast>(g, p.count[0]);
    raw.u = BACKEND::load<kFast>(g + F, p.count[0]);
  }
  __device__ void compute(float (&y)[1][8], const Raw& raw, int64_t, const Place&) const {
    float g[8], u[8];
    unpack(g, raw.g);
    unpack(u, raw.u);
#pragma unroll
    for (int j = 0; j < 8; ++j) y[0][j] = g[j] * sigmoid_of<T>(g[j]) * u[j];
  }
};

template <class T>
struct SwigluBackward {
  static constexpr int kWays = 2;
  struct Raw {
    Pack<T> d, g, u;
  };
  const T *dy, *gu;  // (N,F), (N,2F)
  int F, units;
  __device__ Place place(int unit) const {
    const int c = unit * 8, count = min(8, F - c);
    return {{c, F + c}, {count, count}};
  }
  bool adjacent() const { return F % 16 == 0; }
  template <bool kFast>
  __device__ void load(Raw& raw, int64_t n, const Place& p) const {
    const T* g = gu + n * 2 * F + p.col[0];
    raw.d = BACKEND::load<kFast>(dy + n * F + p.col[0], p.count[0]);
    raw.g = BACKEND::load<kFast>(g, p.count[0]);
    raw.u = BACKEND::load<kFast>(g + F, p.count[0]);
  }
  __device__ void compute(float (&y)[2][8], const Raw& raw, int64_t, const Place&) const {
    float d[8], g[8], u[8];
    unpack(d, raw.d);
    unpack(g, raw.g);
    unpack(u, raw.u);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float s = sigmoid_of<T>(g[j]);
      y[0][j] = d[j] * u[j] * (s * (1.f + g[j] * (1.f - s)));
      y[1][j] = d[j] * (g[j] * s);
    }
  }
};

template <class T, Gelu kKind>
struct GeluForward {
  using Raw = Pack<T>;
  const T* x;
  template <bool kFast>
  __device__ void load(Raw& raw, int64_t at, int count) const {
    raw = BACKEND::load<kFast>(x + at, count);
  }
  __device__ void compute(float (&y)[8], const Raw& raw) const {
    unpack(y, raw);
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] = gelu_of<kKind, T>(y[j]);
  }
};

template <class T, Gelu kKind>
struct GeluBackward {
  struct Raw {
    Pack<T> d, x;
  };
  const T *dy, *x;
  template <bool kFast>
  __device__ void load(Raw& raw, int64_t at, int count) const {
    raw.d = BACKEND::load<kFast>(dy + at, count);
    raw.x = BACKEND::load<kFast>(x + at, count);
  }
  __device__ void compute(float (&y)[8], const Raw& raw) const {
    float v[8];
    unpack(y, raw.d);
    unpack(v, raw.x);
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] *= gelu_grad_of<kKind, T>(v[j]);
  }
};

}  // namespace

void swiglu_forward(Stream& s, Operand y, Tensor gu) {
  const Timed timed(s, Kernel::activation);
  const int64_t N = gu.rows(), F = gu.cols() / 2;
  visit<float, bf16>(gu.dtype, [&]<class T>() {
    produce(s, SwigluForward<T>{gu.ptr<T>(), int(F), int(ceil_div(F, 8))}, Sink<T>(y, N, F),
            F % 8 == 0 && aligned({gu.data}));
  });
}

void swiglu_backward(Stream& s, Operand dgu, Tensor dy, Tensor gu) {
  const Timed timed(s, Kernel::activation);
  const int64_t N = dy.rows(), F = dy.cols();
  CHECK(gu.rows() == N && gu.cols() == 2 * F, gu.shape, " for ", dy.shape);
  visit<float, bf16>(gu.dtype, [&]<class T>() {
    produce(s, SwigluBackward<T>{dy.ptr<T>(), gu.ptr<T>(), int(F), int(ceil_div(F, 8))}, Sink<T>(dgu, N, 2 * F),
            F % 8 == 0 && aligned({dy.data, gu.data}));
  });
}

void gelu_forward(Stream& s, Operand y, Tensor x, Gelu kind) {
  const Timed timed(s, Kernel::activation);
  visit<float, bf16>(x.dtype, [&]<class T>() {
    const Sink<T> out(y, x.rows(), x.cols());
    if (kind == Gelu::exact) produce_elementwise(s, GeluForward<T, Gelu::exact>{x.ptr<T>()}, out, aligned({x.data}));
    else produce_elementwise(s, GeluForward<T, Gelu::tanh>{x.ptr<T>()}, out, aligned({x.data}));
  });
}

void gelu_backward(Stream& s, Operand dx, Tensor dy, Tensor x, Gelu kind) {
  const Timed timed(s, Kernel::activation);
  CHECK(dy.numel() == x.numel(), dy.shape, " for ", x.shape);
  visit<float, bf16>(x.dtype, [&]<class T>() {
    const Sink<T> out(dx, x.rows(), x.cols());
    const bool fast = aligned({x.data, dy.data});
    if (kind == Gelu::exact) produce_elementwise(s, GeluBackward<T, Gelu::exact>{dy.ptr<T>(), x.ptr<T>()}, out, fast);
    else produce_elementwise(s, GeluBackward<T, Gelu::tanh>{dy.ptr<T>(), x.ptr<T>()}, out, fast);
  });
}

}  // namespace octet::BACKEND
