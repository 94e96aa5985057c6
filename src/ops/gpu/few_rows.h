#pragma once
// Matrix products of few rows, as in a step of generation: bound by reading b.
#include "ops/product_shape.h"

namespace octet::BACKEND {

inline constexpr int64_t kFewRows = 16;

// Whether shape and types allow it: bf16 factors, both contiguous along K, rows of whole 16-byte pieces.
inline bool few_rows(const ProductShape& p) {
  return p.M <= kFewRows && p.a == DType::bf16 && p.b == DType::bf16 && !p.a_transposed && !p.b_transposed &&
         p.K % 8 == 0 && (p.d == DType::bf16 || p.d == DType::f32);
}
bool takes_few_rows(const GemmArgs&);  // whether addresses and the bias do, too
void few_rows_product(Stream&, const GemmArgs&);

}  // namespace octet::BACKEND
