#pragma once
// Instructions that C++ has no name for and several kernels use. Hopper's own: hopper.cuh
// (copies, barriers), wgmma.cuh.
#include <cuda_runtime.h>

#include <cstdint>

namespace octet::BACKEND {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

__device__ inline uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ inline float exp2_approx(float x) {  // relative error 2^-22; exactly 1 at 0
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float max_nan(float a, float b) {  // NaN (0x7fffffff) if one of them is
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

__device__ inline uint32_t pack_bf16(float low, float high) {  // two bf16, rounded to nearest even
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// c (16,8) += a (16,16) b (16,8) by one warp. Lane l holds rows l/4 and l/4 + 8 of a and c, column l/4 of b:
//   a0, a2  row l/4, k 2(l%4) and 2(l%4) + 8, two each    a1, a3  the same of row l/4 + 8    b0, b1  the same k of b
//   c[0], c[1]  row l/4, columns 2(l%4) and the next      c[2], c[3]  the same of row l/4 + 8
__device__ inline void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace octet::BACKEND
