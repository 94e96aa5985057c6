// Any number of threads gives the same bits; f32, bf16 and f16 storage give what f64 gives, to their precision.
#include <gtest/gtest.h>

#include "cpu/op_cases.h"

namespace octet::BACKEND {
namespace {

std::vector<Tensor> run_with(const OpCase& c, Lab& lab, DType t, int threads) {
  const Threads scope(threads);
  return c.run(lab, t);
}

TEST(OpStorage, AnyNumberOfThreadsGivesTheSameBits) {
  for (const OpCase& c : op_cases())
    for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      Lab alone;
      const auto want = run_with(c, alone, t, 1);
      for (const int threads : {2, 5}) {
        Lab lab;
        const auto got = run_with(c, lab, t, threads);
        for (size_t i = 0; i < want.size(); ++i)
          EXPECT_TRUE(same_bits(want[i], got[i])) << c.name << ", output " << i << " in " << name_of(t);
      }
    }
}

TEST(OpStorage, NarrowTypesGiveWhatF64Gives) {
  for (const OpCase& c : op_cases()) {
    Lab exact;
    const auto want = run_with(c, exact, DType::f64, 2);
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      Lab lab;
      const auto got = run_with(c, lab, t, 2);
      for (size_t i = 0; i < want.size(); ++i) {
        const double bound = t == DType::f32 ? 1e-12 : 1e-5;  // squares of relative errors
        EXPECT_LT(distance(values(got[i]), values(want[i])), bound)
            << c.name << ", output " << i << " in " << name_of(t);
      }
    }
  }
}

}  // namespace
}  // namespace octet::BACKEND
