// Quantisation of a plain matrix into the forms of an operand; transposition of FP8 codes.
#include "ops/cpu/emit.h"

namespace octet::BACKEND {

void quantize(Stream&, Operand y, Tensor x) {
  const int64_t C = x.cols();
  visit_plain(x.dtype, [&]<class T>() {
    const T* in = x.ptr<T>();
    emit_rows<T>(y, x.rows(), C, [=](int64_t n, Real<T>* v) { widen(v, in + n * C, C); });
  });
}

void transpose(Stream&, Tensor y, Tensor x) {
  const int64_t N = x.rows(), C = x.cols();
  CHECK(size_of(x.dtype) == 1 && y.dtype == x.dtype, name_of(x.dtype), " to ", name_of(y.dtype));
  CHECK(y.rows() == C && y.cols() == N, y.shape, " = transpose of ", x.shape);
  const auto* in = static_cast<const uint8_t*>(x.data);
  auto* out = static_cast<uint8_t*>(y.data);
  constexpr int64_t kBlock = 64;  // a cache line of codes
#pragma omp parallel for
  for (int64_t c0 = 0; c0 < C; c0 += kBlock)
    for (int64_t n0 = 0; n0 < N; n0 += kBlock)
      for (int64_t c = c0; c < std::min(C, c0 + kBlock); ++c)
        for (int64_t n = n0; n < std::min(N, n0 + kBlock); ++n) out[c * N + n] = in[n * C + c];
}

}  // namespace octet::BACKEND
