// Work of matrix products; every distinct shape is recorded, for tuning and for octet bench.
#include <algorithm>

#include "ops/plan/bytes.h"
#include "ops/product_shape.h"

namespace octet::BACKEND {

void gemm(Stream& s, const GemmArgs& g) {
  ProductShape p = shape_of(g);
  CHECK(g.b.contracted() == p.K && g.d.rows() == p.M && g.d.cols() == p.N, "product of (", p.M, ", ", p.K, ") and (",
        p.N, ", ", g.b.contracted(), ")^T into ", g.d.shape);
  CHECK(!is_fp8(p.a) || (!p.a_transposed && !p.b_transposed), "FP8 factors must be contiguous along K");
  count(s, product_class(p.a), p.flops(), bytes(g.a.t, g.b.t, g.d, g.residual, g.bias) + (g.adds() ? bytes(g.d) : 0));

  std::vector<ProductShape>& products = s.device().impl().products;
  auto met = std::find(products.begin(), products.end(), p);
  if (met == products.end()) met = products.insert(met, p);
  ++met->calls;
}

}  // namespace octet::BACKEND
