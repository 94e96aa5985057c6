// Work of grouped products: that of the rows in use when tokens are spread evenly over the experts.
#include "ops/grouped.h"

#include "ops/plan/bytes.h"
#include "ops/product_shape.h"

namespace octet::BACKEND {
namespace {

struct Dealt {
  int64_t rows = 0, experts = 0;  // rows with padding; experts that have any
};
Dealt dealt(Stream& s, const ExpertRows& rows) {
  const std::vector<int64_t> first = moe_offsets(s, nullptr, rows.offset, rows.assignments);
  Dealt d{.rows = first.back()};
  for (size_t e = 1; e < first.size(); ++e) d.experts += first[e] > first[e - 1];
  return d;
}

double matrix_bytes(int64_t rows, int64_t cols, DType t) { return double(rows * cols) * double(size_of(t)); }

}  // namespace

void grouped_gemm(Stream& s, const GroupedGemm& g) {
  const int64_t N = g.d.cols(), K = g.a.contracted(), E = int64_t(g.b.size());
  CHECK(g.rows.offset.numel() == E + 1 && g.a.rows() == g.d.rows() && !g.a.transposed, g.a.t.shape, " into ", g.d.shape,
        " for ", E, " experts");
  for (const Factor& b : g.b) CHECK(b.rows() == N && b.contracted() == K, b.t.shape, " for ", g.d.shape);
  const Dealt d = dealt(s, g.rows);
  count(s, product_class(g.a.t.dtype), 2 * double(d.rows) * double(N) * double(K),
        matrix_bytes(d.rows, K, g.a.t.dtype) + double(d.experts) * matrix_bytes(N, K, g.b[0].t.dtype) + bytes(g.d));
}

void grouped_gradient(Stream& s, const GroupedGradient& g) {
  const int64_t M = g.a.rows(), N = g.b.rows(), E = int64_t(g.d.size());
  CHECK(g.rows.offset.numel() == E + 1 && g.a.contracted() == g.b.contracted(), g.a.t.shape, " and ", g.b.t.shape,
        " for ", E, " experts");
  for (const Tensor& d : g.d) CHECK(d.rows() == M && d.cols() == N, d.shape, " for ", M, " x ", N);
  const Dealt d = dealt(s, g.rows);
  count(s, product_class(g.a.t.dtype), 2 * double(d.rows) * double(M) * double(N),
        matrix_bytes(d.rows, M, g.a.t.dtype) + matrix_bytes(d.rows, N, g.b.t.dtype) +
            (g.first_term ? 1 : 2) * double(d.experts) * matrix_bytes(M, N, g.d[0].dtype));
}

}  // namespace octet::BACKEND
