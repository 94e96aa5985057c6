// Scales follow Transformer Engine's rule bit for bit; without its quirks nothing non-finite enters a history.
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "cpu/lab.h"
#include "csv.h"
#include "golden.h"

namespace octet::BACKEND {
namespace {

uint32_t bits(float f) { return std::bit_cast<uint32_t>(f); }

struct Slots {  // three: the one under test has a neighbour on each side
  ScaleState s;
  StepState step;
  Slots(Lab& lab, int64_t L, float largest) {
    s.scale = lab.zeros(DType::f32, {3, 4});
    s.amax = lab.zeros(DType::u32, {3});
    s.history = lab.zeros(DType::f32, {L, 3});
    s.largest = lab.zeros(DType::f32, {3});
    s.nonfinite = lab.zeros(DType::u32, {3});
    for (int i = 0; i < 3; ++i) s.scale.ptr<float>()[4 * i] = 1, s.largest.ptr<float>()[i] = largest;
  }
  float scale(int i = 1) const { return s.scale.ptr<float>()[4 * i]; }
  float history(int64_t row) const { return s.history.ptr<float>()[3 * row + 1]; }
  void update(Lab& lab, uint32_t amax) {
    s.amax.ptr<uint32_t>()[1] = amax;
    update_scales(lab.stream(), s, {&step, DType::e4m3, {int64_t(sizeof step)}});
    EXPECT_EQ(s.amax.ptr<uint32_t>()[1], 0u);
  }
};

TEST(OpScaling, FollowsTheGoldenRuleBitForBit) {
  const auto rows = read_csv(golden("fp8-delayed/update_rule.csv"));
  ASSERT_GT(rows.size(), 1000u);
  Lab lab;
  std::unique_ptr<Slots> slots;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto& row = rows[r];
    if (row[5] == "0") {  // a new sequence
      const float largest = row[1] == "e4m3" ? e4m3::largest() : e5m2::largest();
      slots = std::make_unique<Slots>(lab, std::stoi(row[3]), std::ldexp(largest, -std::stoi(row[4])));
      slots->s.te_compat = true;
      slots->s.most_recent = row[2] == "most_recent";
    }
    slots->update(lab, hex(row[6]));
    EXPECT_EQ(bits(slots->scale()), hex(row[7])) << "row " << r;
    EXPECT_EQ(bits(1 / slots->scale()), hex(row[9])) << "row " << r;
    std::stringstream in(row[10]);
    std::string value;
    for (int i = 0; in >> value; ++i) EXPECT_EQ(bits(slots->history(i)), hex(value)) << "row " << r << ", " << i;
    EXPECT_EQ(slots->scale(0), 1.f);
    EXPECT_EQ(slots->scale(2), 1.f);
  }
}

TEST(OpScaling, NonFiniteMaximaAreCountedAndNeverEnterTheHistory) {
  for (const bool most_recent : {false, true}) {
    Lab lab;
    Slots slots(lab, 4, 448);
    slots.s.most_recent = most_recent;
    slots.update(lab, bits(2));
    const Tensor before = lab.copy(slots.s.history);
    slots.update(lab, bits(INFINITY));
    slots.update(lab, bits(NAN));
    EXPECT_TRUE(same_bits(before, slots.s.history));
    EXPECT_EQ(slots.scale(), 224);
    EXPECT_EQ(slots.s.nonfinite.ptr<uint32_t>()[1], 2u);
    EXPECT_EQ(slots.s.nonfinite.ptr<uint32_t>()[0], 0u);
    EXPECT_EQ(slots.step.nonfinite_casts, 2u);
    slots.update(lab, bits(4));
    EXPECT_EQ(slots.scale(), 112);
  }
}

TEST(OpScaling, ASlotThatDidNotRunKeepsScaleAndHistory) {
  Lab lab;
  Slots slots(lab, 4, 448);
  slots.update(lab, bits(2));
  const Tensor before = lab.copy(slots.s.history);
  slots.update(lab, 0);
  EXPECT_TRUE(same_bits(before, slots.s.history));
  EXPECT_EQ(slots.scale(), 224);
}

TEST(OpScaling, WithoutRescalingOnlyTheHistoryMoves) {
  Lab lab;
  Slots slots(lab, 4, 448);
  slots.update(lab, bits(2));
  slots.s.rescale = false;
  slots.update(lab, bits(4));
  EXPECT_EQ(slots.scale(), 224);
  EXPECT_EQ(slots.history(2), 2);
  EXPECT_EQ(slots.history(3), 4);
}

TEST(OpScaling, TheFirstMaximumSetsAScaleInAnyUpdate) {
  for (const int64_t length : {1, 4}) {
    Lab lab;
    Slots slots(lab, length, 448);
    slots.s.rescale = false;
    slots.update(lab, 0);
    EXPECT_EQ(slots.scale(), 1);
    slots.update(lab, bits(INFINITY));
    EXPECT_EQ(slots.scale(), 1);
    slots.update(lab, bits(2));
    EXPECT_EQ(slots.scale(), 224);
    slots.update(lab, bits(4));
    EXPECT_EQ(slots.scale(), 224);
  }
}

TEST(OpScaling, PowersOfTwoRoundDown) {
  Lab lab;
  Slots slots(lab, 1, 448);
  slots.s.power_of_2 = true;
  slots.update(lab, bits(3));  // 149.3
  EXPECT_EQ(slots.scale(), 128);
}

TEST(OpScaling, CurrentScaleFitsWhatWasMeasured) {
  Lab lab;
  const auto current = [&](float amax, bool power_of_2) {
    float scale = -1;
    const uint32_t measured = bits(amax);
    current_scale(lab.stream(), &scale, &measured, 448, power_of_2);
    return scale;
  };
  EXPECT_EQ(current(3, false), 448.f / 3);
  EXPECT_EQ(current(3, true), 128);
  EXPECT_EQ(current(1e-38f, false), 3.402823466e38f);  // the quotient overflows
  for (const float none : {0.f, INFINITY, NAN}) EXPECT_EQ(current(none, false), 1);
}

}  // namespace
}  // namespace octet::BACKEND
