// Counts the codes of an FP8 tensor at the ends of its format: largest values and zeros; and sums their squares.
#include <algorithm>

#include "ops/formulas.h"
#include "ops/ops.h"

namespace octet::BACKEND {

void count_codes(Stream&, Tensor counts, Tensor q) {
  CHECK(is_fp8(q.dtype) && counts.numel() == 6, name_of(q.dtype), ", counts ", counts.shape);
  const auto* codes = static_cast<const uint8_t*>(q.data);
  const uint8_t top = q.dtype == DType::e4m3 ? e4m3(e4m3::largest()).bits : e5m2(e5m2::largest()).bits;
  const int64_t n = std::min(q.numel(), kMostCounted);
  const CodeSquares squares = q.dtype == DType::e4m3 ? CodeSquares::make<e4m3>() : CodeSquares::make<e5m2>();
  uint32_t largest = 0, zeros = 0;
  uint64_t sum = 0;
#pragma omp parallel for reduction(+ : largest, zeros, sum)
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t magnitude = codes[i] & 0x7f;
    largest += magnitude == top;
    zeros += magnitude == 0;
    sum += squares.of[magnitude];
  }
  uint32_t* out = counts.ptr<uint32_t>();
  out[0] += uint32_t(n);
  out[1] += largest;
  out[2] += zeros;
  sum += out[4] + (uint64_t(out[5]) << 32);
  out[4] = uint32_t(sum), out[5] = uint32_t(sum >> 32);
}

}  // namespace octet::BACKEND
