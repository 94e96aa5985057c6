// Narrow formats round like the hardware: every code, every tie and its neighbours.
#include <gtest/gtest.h>

#include <cmath>

#include "base/float.h"
#include "base/rng.h"
#include "csv.h"
#include "golden.h"

namespace octet {
namespace {

TEST(Float8, EncodesTheGoldenVectors) {
  const auto rows = read_csv(golden("fp8-formats/vectors.csv"));
  ASSERT_GT(rows.size(), 2000u);
  for (const auto& row : rows) {
    const float x = std::bit_cast<float>(hex(row[2]));
    EXPECT_EQ(row[1] == "e4m3" ? e4m3(x).bits : e5m2(x).bits, hex(row[4])) << row[1] << ' ' << row[3];
  }
}

TEST(Float8, DecodesEveryCode) {
  const auto rows = read_csv(golden("fp8-formats/decode.csv"));
  ASSERT_EQ(rows.size(), 512u);
  for (const auto& row : rows) {
    e4m3 a;
    e5m2 b;
    a.bits = b.bits = uint8_t(hex(row[1]));
    const float got = row[0] == "e4m3" ? float(a) : float(b), want = std::stof(row[2]);
    EXPECT_EQ(std::isnan(got), std::isnan(want)) << row[0] << ' ' << row[1];
    if (std::isnan(want)) continue;
    EXPECT_TRUE(got == want && std::signbit(got) == std::signbit(want)) << row[0] << ' ' << row[1];
  }
}

// Rounding by its definition, in f64: to a multiple of the spacing at x, ties to the even multiple.
double reference(double x, int mantissa_bits, int min_exponent) {
  if (x == 0 || !std::isfinite(x)) return x;
  const double spacing = std::ldexp(1.0, std::max(std::ilogb(x), min_exponent) - mantissa_bits);
  return std::nearbyint(x / spacing) * spacing;  // exact: a power of two; the default mode is ties to even
}

template <class T>
class Float16 : public testing::Test {};
struct Bf16 {
  using Type = bf16;
  static constexpr int kMantissa = 7, kMinExponent = -126;
  static constexpr double kOverflow = 0x1.FFp127;  // rounds to infinity from here on
  static constexpr uint16_t kInfinity = 0x7f80;
};
struct F16 {
  using Type = f16;
  static constexpr int kMantissa = 10, kMinExponent = -14;
  static constexpr double kOverflow = 65520;
  static constexpr uint16_t kInfinity = 0x7c00;
};
using Formats = testing::Types<Bf16, F16>;
TYPED_TEST_SUITE(Float16, Formats);

TYPED_TEST(Float16, EveryCodeComesBack) {
  using T = typename TypeParam::Type;
  for (uint32_t code = 0; code < 65536; ++code) {
    T t;
    t.bits = uint16_t(code);
    const float f = t;
    if ((code & 0x7fff) > TypeParam::kInfinity) {
      EXPECT_TRUE(std::isnan(f) && std::isnan(float(T(f)))) << code;
    } else {
      EXPECT_EQ(T(f).bits, code);
    }
  }
}

template <class Format>
void expect_rounded(float x) {
  using T = typename Format::Type;
  const double want = std::fabs(double(x)) >= Format::kOverflow
                          ? std::copysign(INFINITY, x)
                          : reference(double(x), Format::kMantissa, Format::kMinExponent);
  const float got = float(T(x));
  EXPECT_TRUE(double(got) == want && std::signbit(got) == std::signbit(x))
      << x << " became " << got << ", not " << want;
}

TYPED_TEST(Float16, TiesAndTheirNeighboursRoundToNearestEven) {
  using T = typename TypeParam::Type;
  for (uint32_t code = 0; code < TypeParam::kInfinity; ++code) {
    T low, high;
    low.bits = uint16_t(code);
    high.bits = uint16_t(code + 1);
    const double top = std::isfinite(float(high)) ? double(float(high)) : 2 * TypeParam::kOverflow - double(float(low));
    const float tie = float((double(float(low)) + top) / 2);
    for (const float x : {tie, std::nextafter(tie, 0.f), std::nextafter(tie, INFINITY)}) {
      expect_rounded<TypeParam>(x);
      expect_rounded<TypeParam>(-x);
    }
  }
}

TYPED_TEST(Float16, AnyBitsRoundLikeTheDefinition) {
  using T = typename TypeParam::Type;
  for (uint64_t i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(uint32_t(random_bits(1, 2, i)));
    if (!std::isnan(x)) expect_rounded<TypeParam>(x);
    else EXPECT_TRUE(std::isnan(float(T(x))));
  }
}

}  // namespace
}  // namespace octet
