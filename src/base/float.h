#pragma once
// Storage formats narrower than fp32, rounded as the hardware does: to nearest, ties to even; FP8 saturates, and its
// NaN is 0x7F. All constexpr, so that nvcc compiles the same functions for the device (--expt-relaxed-constexpr).
//                                                                   FP8: Micikevicius et al. 2022, arXiv:2209.05433
#include <bit>
#include <cstdint>

namespace octet {

struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  constexpr explicit bf16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    bits = f != f ? uint16_t(0x7fff) : uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
  constexpr operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

struct f16 {  // IEEE binary16; overflows to infinity
  uint16_t bits = 0;
  f16() = default;
  constexpr explicit f16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) {
      bits = 0x7fff;
      return;
    }
    if (a >= 0x477ff000) {
      bits = uint16_t(sign | 0x7c00);
      return;
    }  // 65520 and above round to infinity
    const int e = int(a >> 23);
    int shift = 13;
    uint32_t v = uint32_t(e - 112) << 23 | (a & 0x7fffff);
    if (e < 113) {  // subnormal: the implicit bit becomes a mantissa bit
      shift += 113 - e;
      if (e == 0 || shift > 25) {
        bits = uint16_t(sign);
        return;
      }
      v = (a & 0x7fffff) | 0x800000;
    }
    v += (1u << (shift - 1)) - 1 + ((v >> shift) & 1);
    bits = uint16_t(sign | v >> shift);
  }
  constexpr operator float() const {
    const uint32_t sign = uint32_t(bits & 0x8000) << 16, e = (bits >> 10) & 31, m = bits & 0x3ff;
    if (e == 31) return std::bit_cast<float>(sign | 0x7f800000 | m << 13);
    if (e == 0) return std::bit_cast<float>(sign | 0x3f800000) * float(m) * 0x1p-24f;
    return std::bit_cast<float>(sign | (e + 112) << 23 | m << 13);
  }
};

// M mantissa bits; kMax: the code of the largest finite value; kOver: the fp32 bits above which a value saturates.
template <int M, int kBias, uint8_t kMax, uint32_t kOver>
struct Float8 {
  uint8_t bits = 0;
  Float8() = default;
  constexpr explicit Float8(float f) : bits(encode(std::bit_cast<uint32_t>(f))) {}
  constexpr operator float() const {
    const uint32_t sign = uint32_t(bits & 0x80) << 24, a = bits & 0x7f, e = a >> M, m = a & ((1 << M) - 1);
    if (a > kMax) return std::bit_cast<float>(sign | (M == 2 && m == 0 ? 0x7f800000u : 0x7fc00000u));
    if (e == 0)
      return std::bit_cast<float>(sign | 0x3f800000) * float(m) * std::bit_cast<float>(uint32_t(128 - kBias - M) << 23);
    return std::bit_cast<float>(sign | (e + 127 - kBias) << 23 | m << (23 - M));
  }
  static constexpr float largest() {
    Float8 f;
    f.bits = kMax;
    return f;
  }

 private:
  static constexpr uint8_t encode(uint32_t u) {
    constexpr int kMin = 128 - kBias;  // fp32 exponent of the smallest normal
    const uint32_t sign = (u >> 24) & 0x80, a = u & 0x7fffffff;
    if (a > 0x7f800000) return 0x7f;
    if (a > kOver) return uint8_t(sign | kMax);
    const int e = int(a >> 23);
    int shift = 23 - M;
    uint32_t v = uint32_t(e - kMin + 1) << 23 | (a & 0x7fffff);
    if (e < kMin) {  // subnormal: the implicit bit becomes a mantissa bit
      shift += kMin - e;
      if (e == 0 || shift > 25) return uint8_t(sign);
      v = (a & 0x7fffff) | 0x800000;
    }
    v += (1u << (shift - 1)) - 1 + ((v >> shift) & 1);  // a carry moves to the next binade by itself
    return uint8_t(sign | v >> shift);
  }
};
using e4m3 = Float8<3, 7, 0x7e, 0x43e80000>;
using e5m2 = Float8<2, 15, 0x7b, 0x476fffff>;

}  // namespace octet
