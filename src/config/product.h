#pragma once
// The shape of a matrix product: what the plan engine finds, the gpu engine tunes, and `octet bench` times.
#include "tensor/tensor.h"

namespace octet {

struct ProductShape {  // d (M,N) = a (M,K) @ b (N,K)^T
  int64_t M = 0, N = 0, K = 0;
  DType a = DType::f32, b = DType::f32, d = DType::f32;
  bool a_transposed = false, b_transposed = false;  // stored as (K,M), (K,N)
  bool accumulate = false, residual = false, bias = false, fast = false;
  int64_t calls = 0;  // number of calls; not part of the shape
  bool operator==(const ProductShape& o) const {
    return M == o.M && N == o.N && K == o.K && a == o.a && b == o.b && d == o.d && a_transposed == o.a_transposed &&
           b_transposed == o.b_transposed && accumulate == o.accumulate && residual == o.residual && bias == o.bias &&
           fast == o.fast;
  }
  double flops() const { return 2 * double(M) * double(N) * double(K); }
};

}  // namespace octet
