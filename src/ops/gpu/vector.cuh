#pragma once
// Vectors of eight elements: the loads and stores of every kernel, and conversion to FP8 codes.
// kFast: all eight exist (or none, count == 0) and the address is aligned; otherwise element by element up to `count`.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <initializer_list>

#include "device/gpu.h"
#include "ops/gpu/instructions.cuh"
#include "ops/ops.h"

namespace octet::BACKEND {

template <class T>
struct Pack {
  uint4 a;
};  // eight elements as they lie in memory
template <>
struct Pack<float> {
  uint4 a, b;
};
template <>
struct Pack<uint8_t> {
  uint2 a;
};

inline unsigned blocks_for(int64_t n, int64_t each) { return unsigned(n > each ? (n + each - 1) / each : 1); }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks across and down a matrix. CUDA has at most 65535 down: what is more stands in planes behind.
inline dim3 matrix_grid(int64_t across, int64_t down) {
  const int64_t planes = std::max<int64_t>(1, ceil_div(down, 65535));
  return dim3(unsigned(across), unsigned(std::max<int64_t>(1, ceil_div(down, planes))), unsigned(planes));
}
__device__ inline int64_t block_down() { return blockIdx.z * int64_t(gridDim.y) + blockIdx.y; }

inline bool aligned(std::initializer_list<const void*> pointers, uintptr_t bytes = 16) {
  for (const void* p : pointers)
    if (reinterpret_cast<uintptr_t>(p) % bytes) return false;
  return true;
}

template <class F>
void with_bool(bool b, F&& f) {  // a run-time bool as a template argument
  if (b) f.template operator()<true>();
  else f.template operator()<false>();
}

// Allows a kernel `bytes` of dynamic shared memory, at the cost of L1 cache.
template <class K>
void allow_shared(K kernel, size_t bytes) {
  const auto max_shared = int(cudaSharedmemCarveoutMaxShared);
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, max_shared));
}

template <class T>
__device__ inline Pack<T> load8(const T* p) {
  return *reinterpret_cast<const Pack<T>*>(p);
}
// Bypasses L1, which is left to data that is read again. Only for memory that the kernel does not write.
template <class T>
__device__ inline Pack<T> load_once(const T* p) {
  Pack<T> r;
#pragma unroll
  for (size_t i = 0; i < sizeof r / 16; ++i) {
    uint4& v = reinterpret_cast<uint4*>(&r)[i];
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(reinterpret_cast<const uint4*>(p) + i));
  }
  return r;
}
template <class T>
__device__ inline void store8(T* p, const Pack<T>& v) {
  *reinterpret_cast<Pack<T>*>(p) = v;
}

__device__ inline void unpack(float (&v)[8], const Pack<float>& p) {
  const uint32_t w[8] = {p.a.x, p.a.y, p.a.z, p.a.w, p.b.x, p.b.y, p.b.z, p.b.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = __uint_as_float(w[i]);
}
__device__ inline void unpack(float (&v)[8], const Pack<bf16>& p) {
  const uint32_t w[4] = {p.a.x, p.a.y, p.a.z, p.a.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(w[i] << 16);
    v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
  }
}
__device__ inline void unpack(float (&v)[8], const Pack<f16>& p) {
  const uint32_t w[4] = {p.a.x, p.a.y, p.a.z, p.a.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __half2float(__ushort_as_half(uint16_t(w[i])));
    v[2 * i + 1] = __half2float(__ushort_as_half(uint16_t(w[i] >> 16)));
  }
}

template <class T>
struct Narrow;  // the hardware's conversions, equal to base/float.h's
template <>
struct Narrow<bf16> {
  static __device__ uint32_t pair(float lo, float hi) { return pack_bf16(lo, hi); }
};
template <>
struct Narrow<f16> {
  static __device__ uint32_t pair(float lo, float hi) {
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
  }
};
template <class T>
__device__ inline Pack<T> pack(const float (&v)[8]) {
  if constexpr (sizeof(T) == 4) {
    return {{__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3])},
            {__float_as_uint(v[4]), __float_as_uint(v[5]), __float_as_uint(v[6]), __float_as_uint(v[7])}};
  } else {
    return {{Narrow<T>::pair(v[0], v[1]), Narrow<T>::pair(v[2], v[3]), Narrow<T>::pair(v[4], v[5]),
             Narrow<T>::pair(v[6], v[7])}};
  }
}

template <bool kFast, class T>
__device__ inline Pack<T> load(const T* p, int count) {
  Pack<T> r{};
  if constexpr (kFast) {
    if (count) r = load8(p);
  } else if constexpr (sizeof(T) == 4) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = i < count ? float(p[i]) : 0.f;
    r = pack<T>(v);
  } else {
    uint32_t w[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < count) w[i / 2] |= uint32_t(p[i].bits) << (i % 2 * 16);
    r.a = {w[0], w[1], w[2], w[3]};
  }
  return r;
}
template <bool kFast, class T>
__device__ inline void store(T* p, const float (&v)[8], int count) {
  if constexpr (kFast) {
    if (count) store8(p, pack<T>(v));
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < count) p[i] = T(v[i]);
  }
}

// ---- FP8 codes, bit for bit those of base/float.h
__device__ inline uint32_t magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }  // NaN > inf > finite

template <DType kFormat>
__device__ inline uint32_t encode1(float scaled) {
  if constexpr (kFormat == DType::e4m3) return e4m3(scaled).bits;
  else return e5m2(scaled).bits;
}
template <DType kFormat>
__device__ inline uint32_t encode4(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  uint32_t codes;
  if constexpr (kFormat == DType::e4m3)
    asm("{ .reg .b16 lo, hi; cvt.rn.satfinite.e4m3x2.f32 lo, %2, %1; cvt.rn.satfinite.e4m3x2.f32 hi, %4, %3;"
        " mov.b32 %0, {lo, hi}; }"
        : "=r"(codes)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  else
    asm("{ .reg .b16 lo, hi; cvt.rn.satfinite.e5m2x2.f32 lo, %2, %1; cvt.rn.satfinite.e5m2x2.f32 hi, %4, %3;"
        " mov.b32 %0, {lo, hi}; }"
        : "=r"(codes)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  return codes;
#else
  return encode1<kFormat>(a) | encode1<kFormat>(b) << 8 | encode1<kFormat>(c) << 16 | encode1<kFormat>(d) << 24;
#endif
}
// __fmul_rn: the product is rounded on its own (not fused), as on the cpu. largest: the vector's magnitude; only if it
// is NaN, codes of NaN are made canonical (0x7F), whatever the instruction makes of their sign and payload.
template <DType kFormat>
__device__ inline uint2 encode8(const float (&v)[8], float scale, uint32_t largest) {
  float s[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) s[i] = __fmul_rn(v[i], scale);
  uint2 codes{encode4<kFormat>(s[0], s[1], s[2], s[3]), encode4<kFormat>(s[4], s[5], s[6], s[7])};
  if (largest > 0x7f800000u) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t byte = 0xffu << (8 * i), nan = 0x7fu << (8 * i);
      if (s[i] != s[i]) codes.x = (codes.x & ~byte) | nan;
      if (s[i + 4] != s[i + 4]) codes.y = (codes.y & ~byte) | nan;
    }
  }
  return codes;
}

}  // namespace octet::BACKEND
