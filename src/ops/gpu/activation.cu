// SwiGLU and GELU. With bf16 activations, exp and the reciprocal are the hardware's approximations (relative error
// about 1e-6, far below that of bf16 and FP8); with fp32 they are those of formulas.h.
#include "ops/formulas.h"
#include "ops/gpu/instructions.cuh"
#include "ops/gpu/producer.cuh"

namespace octet::BACKEND {

namespace {

// 1 / (1 + 2^-x): sigmoid(x) = sigmoid2_approx(x log2(e)), where log2(e) can be merged into an earlier factor.
__device__ inline float sigmoid2_approx(float x) { return reciprocal_approx(1.f + exp2_approx(-x)); }
template <class T>
__device__ inline float sigmoid_of(float x) {
  if constexpr (sizeof(T) == 4) return sigmoid(x);
  else return sigmoid2_approx(kLog2e * x);
}
// Phi(-z), z >= 0, as 2 to the power of a polynomial, minimax in the relative error: 6e-6 for z < 4, then growing as
// the value itself vanishes: 3e-5 at 6, 2e-3 at 8, where Phi is 6e-16. Beyond, it goes to 0 faster than Phi.
__device__ inline float normal_tail_approx(float z) {
  float g = fmaf(-1.7654664e-6f, z, 6.03847997e-5f);
  g = fmaf(fmaf(g, z, -9.22415713e-4f), z, 8.48182108e-3f);
  g = fmaf(fmaf(g, z, -5.39184522e-2f), z, -0.458494856f);
  return exp2_approx(fmaf(fmaf(g, z, -1.15124305f), z, -0.999995619f));
}
// 2u log2(e), u the argument of the tanh in GELU's approximation
__device__ inline float gelu_tanh_argument2(float x) {
  constexpr float k = 1.5957691216057308f * kLog2e;
  return x * fmaf(0.044715f * k * x, x, k);
}
template <Gelu kKind, class T>
__device__ inline float gelu_of(float x) {
  if constexpr (sizeof(T) == 4) return kKind == Gelu::exact ? gelu(x) : gelu_tanh(x);
  else if constexpr (kKind == Gelu::exact)
    return fmaf(-fabsf(x), normal_tail_approx(fabsf(x)), fmaxf(x, 0.f));  // x Phi(x), accurate for x < 0 too
  else return x * sigmoid2_approx(gelu_tanh_argument2(x));                // (1 + tanh u)/2 = sigmoid(2u)
}
template <Gelu kKind, class T>
__device__ inline float gelu_grad_of(float x) {
  if constexpr (sizeof(T) == 4) return kKind == Gelu::exact ? gelu_grad(x) : gelu_tanh_grad(x);
  else if constexpr (kKind == Gelu::exact) {
    const float density = exp2_approx(-0.5f * kLog2e * x * x), z = fabsf(x);
    const float below = fmaf(-0.39894228f * z, density, normal_tail_approx(z));  // gelu'(-|x|) = 1 - gelu'(|x|)
    return x > 0 ? 1.f - below : below;
  }
  const float s = sigmoid2_approx(gelu_tanh_argument2(x));
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
