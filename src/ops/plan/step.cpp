// Work of sums, casts, the optimizer and the scales, in bytes.
#include "ops/plan/bytes.h"

namespace octet::BACKEND {

void sum(Stream& s, Tensor total, Tensor x) { count(s, Kernel::loss, 0, bytes(total, total, x)); }
void column_sum(Stream& s, Tensor total, Tensor x, Tensor) { count(s, Kernel::elementwise, 0, bytes(total, total, x)); }
void sum_of_squares(Stream& s, Tensor total, Tensor x, Tensor) {
  count(s, Kernel::optimizer, 0, bytes(total, total, x));
}

void quantize(Stream& s, Operand y, Tensor x) { count(s, Kernel::quantize, 0, bytes(y, x)); }
void count_codes(Stream& s, Tensor counts, Tensor q) { count(s, Kernel::quantize, 0, bytes(counts, counts, q)); }
void transpose(Stream& s, Tensor y, Tensor x) { count(s, Kernel::quantize, 0, bytes(y, x)); }
void convert(Stream& s, Tensor y, Tensor x) { count(s, Kernel::elementwise, 0, bytes(y, x)); }
void add(Stream& s, Tensor y, Tensor a, Tensor b) { count(s, Kernel::elementwise, 0, bytes(y, a, b)); }
void init_normal(Stream& s, Tensor y, double, double, uint64_t, uint64_t, int64_t) {
  count(s, Kernel::elementwise, 0, bytes(y));
}

void finish_gradients(Stream& s, Tensor state, double, int64_t) { count(s, Kernel::optimizer, 0, bytes(state, state)); }
void adamw(Stream& s, std::span<const AdamwPiece> pieces, const AdamwSettings&, Tensor) {
  double moved = 0;
  for (const AdamwPiece& p : pieces) moved += bytes(p.master, p.master, p.m, p.m, p.v, p.v, p.grad, p.weights);
  count(s, Kernel::optimizer, 0, moved);
}

void update_scales(Stream& s, const ScaleState& u, Tensor) {
  count(s, Kernel::scaling, 0, 2 * bytes(u.scale, u.amax, u.history) + bytes(u.largest));
}
void inherit_scales(Stream& s, const ScaleState& u, Tensor groups) {
  count(s, Kernel::scaling, 0, bytes(groups, u.scale));
}
void current_scale(Stream& s, float*, const uint32_t*, float, bool) {
  count(s, Kernel::scaling, 0, sizeof(float) + sizeof(uint32_t));
}

}  // namespace octet::BACKEND
