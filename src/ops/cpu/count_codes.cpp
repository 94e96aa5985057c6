// Counts the codes of an FP8 tensor at the ends of its format: largest values and zeros.
#include <algorithm>

#include "ops/ops.h"

namespace octet::BACKEND {

void count_codes(Stream&, Tensor counts, Tensor q) {
  CHECK(is_fp8(q.dtype) && counts.numel() == 4, name_of(q.dtype), ", counts ", counts.shape);
  const auto* codes = static_cast<const uint8_t*>(q.data);
  const uint8_t top = q.dtype == DType::e4m3 ? e4m3(e4m3::largest()).bits : e5m2(e5m2::largest()).bits;
  const int64_t n = std::min(q.numel(), kMostCounted);
  uint32_t largest = 0, zeros = 0;
#pragma omp parallel for reduction(+ : largest, zeros)
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t magnitude = codes[i] & 0x7f;
    largest += magnitude == top;
    zeros += magnitude == 0;
  }
  uint32_t* out = counts.ptr<uint32_t>();
  out[0] += uint32_t(n);
  out[1] += largest;
  out[2] += zeros;
}

}  // namespace octet::BACKEND
