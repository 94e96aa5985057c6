// Work of a mixture of experts, in bytes: of buffers of experts' rows, those in use when tokens are spread evenly.
#include "ops/moe.h"

#include <algorithm>

#include "ops/plan/bytes.h"

namespace octet::BACKEND {

namespace {
double rows_bytes(Tensor t, int64_t rows) { return double(rows * t.cols()) * double(size_of(t.dtype)); }
}  // namespace

void moe_jitter(Stream& s, Tensor y, Tensor x, double, uint64_t) { count(s, Kernel::elementwise, 0, bytes(y, x)); }
void moe_route(Stream& s, const MoeRoute& m, Tensor logits, Tensor) {
  count(s, Kernel::elementwise, 0, bytes(m.expert, m.weight, m.probability, m.lse, logits));
}
void moe_route_backward(Stream& s, const MoeRouteBackward& g) {
  const MoeRoute& m = g.route;
  count(s, Kernel::elementwise, 0, bytes(g.dlogits, m.expert, m.weight, m.probability, m.lse, g.dweight));
}
void moe_sort(Stream& s, const MoeRows& m, Tensor expert) {
  count(s, Kernel::elementwise, 0, bytes(m.offset, m.count, m.row, m.source, expert));
}
std::vector<int64_t> moe_offsets(Stream&, int32_t*, Tensor offset, int64_t assignments) {
  const int64_t E = offset.numel() - 1;
  std::vector<int64_t> first{0};
  for (int64_t e = 0; e < E; ++e)
    first.push_back(first.back() + padded_rows(assignments * (e + 1) / E - assignments * e / E));
  return first;
}
void moe_fetch_offsets(Stream& s, int32_t* pinned, Tensor offset, int64_t assignments) {
  for (int64_t r = 0; r < offset.rows(); ++r) {
    const auto first = moe_offsets(s, nullptr, offset.row_range(r, 1), assignments);
    std::copy(first.begin(), first.end(), pinned + r * offset.cols());
  }
}
void moe_gather(Stream& s, Tensor y, Tensor x, Tensor source, int64_t K) {
  count(s, Kernel::elementwise, 0, bytes(y, source) + rows_bytes(x, x.rows() * K));
}
void moe_combine(Stream& s, Tensor y, Tensor o, Tensor row, Tensor weight, Tensor residual) {
  count(s, Kernel::elementwise, 0, bytes(y, row, weight, residual) + rows_bytes(o, row.numel()));
}
void moe_combine_backward(Stream& s, const MoeCombineBackward& g) {
  const int64_t used = g.weight.numel();
  count(s, Kernel::elementwise, 0,
        bytes(g.d_o, g.dweight, g.weight, g.source) + rows_bytes(g.dy, used) + rows_bytes(g.o, used));
}
void moe_add_sums(Stream& s, Tensor sums, Tensor chosen, const MoeRoute& m) {
  count(s, Kernel::elementwise, 0, bytes(sums, sums, chosen, m.probability, m.lse));
}
void moe_losses(Stream& s, const MoeLosses& m) {
  count(s, Kernel::elementwise, 0, bytes(m.losses, m.losses, m.total, m.load, m.load, m.sums));
}

}  // namespace octet::BACKEND
