// Grouped matrix products: one gemm() for each expert.
#include "ops/grouped.h"

#include <algorithm>

#include "ops/cpu/rows.h"

namespace octet::BACKEND {
namespace {

std::vector<int64_t> offsets(Stream& s, const ExpertRows& rows, int64_t R) {
  const std::vector<int64_t> first = moe_offsets(s, nullptr, rows.offset, rows.assignments);
  CHECK(first.front() == 0 && first.back() <= R, first.back(), " rows of experts in a buffer of ", R);
  return first;
}

Factor of_expert(Factor f, int64_t e, int64_t scale_step) {
  if (f.scale_inv) f.scale_inv += e * scale_step;
  return f;
}

// Columns first, first + 1, ... of a matrix, copied to contiguous memory.
Tensor columns(std::unique_ptr<char[]>& memory, Tensor t, int64_t first, int64_t count) {
  const int64_t size = int64_t(size_of(t.dtype));
  memory = buffer<char>(t.rows() * count * size);
  for (int64_t r = 0; r < t.rows(); ++r)
    std::copy_n(static_cast<const char*>(t.data) + (r * t.cols() + first) * size, count * size,
                memory.get() + r * count * size);
  return {memory.get(), t.dtype, {t.rows(), count}};
}

class Contracted {  // a part of a factor along the contracted axis
 public:
  Contracted(Factor f, int64_t first, int64_t count) : factor_(f) {
    factor_.t = f.transposed ? f.t.row_range(first, count) : columns(memory_, f.t, first, count);
  }
  const Factor& factor() const { return factor_; }

 private:
  std::unique_ptr<char[]> memory_;
  Factor factor_;
};

}  // namespace

void grouped_gemm(Stream& s, const GroupedGemm& g) {
  const int64_t R = g.d.rows(), E = int64_t(g.b.size());
  CHECK(g.rows.offset.numel() == E + 1 && g.a.rows() == R && !g.a.transposed, g.a.t.shape, " into ", g.d.shape, " for ",
        E, " experts");
  const std::vector<int64_t> first = offsets(s, g.rows, R);
  for (int64_t e = 0; e < E; ++e) {
    const int64_t begin = first[size_t(e)], rows = first[size_t(e) + 1] - begin;
    if (rows == 0) continue;
    Factor a = of_expert(g.a, e, g.scale_step);
    a.t = a.t.row_range(begin, rows);
    gemm(s, {.d = g.d.row_range(begin, rows), .a = a, .b = g.b[size_t(e)], .fast = g.fast});
  }
  fill_zero(s, g.d.row_range(first.back(), R - first.back()));
}

void grouped_gradient(Stream& s, const GroupedGradient& g) {
  const int64_t R = g.a.contracted(), E = int64_t(g.d.size());
  CHECK(g.rows.offset.numel() == E + 1 && g.b.contracted() == R, g.a.t.shape, " and ", g.b.t.shape, " for ", E,
        " experts");
  const std::vector<int64_t> first = offsets(s, g.rows, R);
  for (int64_t e = 0; e < E; ++e) {
    const int64_t begin = first[size_t(e)], rows = first[size_t(e) + 1] - begin;
    if (rows == 0) {
      if (g.first_term) fill_zero(s, g.d[size_t(e)]);
      continue;
    }
    const Contracted a(of_expert(g.a, e, g.scale_step), begin, rows), b(of_expert(g.b, e, g.scale_step), begin, rows);
    gemm(s, {.d = g.d[size_t(e)],
             .a = a.factor(),
             .b = b.factor(),
             .accumulate = true,
             .first_term = g.first_term,
             .fast = g.fast});
  }
}

}  // namespace octet::BACKEND
