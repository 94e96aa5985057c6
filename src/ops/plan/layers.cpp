// Work of the layers' operations: the bytes that must move (no workspaces), and the FLOPs of matrix products, not of
// element-wise arithmetic.
#include <algorithm>
#include <utility>

#include "ops/plan/bytes.h"

namespace octet::BACKEND {

void embedding_forward(Stream& s, Tensor y, Tensor tokens, Tensor) {
  count(s, Kernel::embedding, 0, bytes(y, y, tokens));  // of w only the rows that y copies
}
void embedding_backward(Stream& s, Tensor dw, Tensor dy, Tensor tokens, Tensor order) {
  const double rows = double(std::min(dw.rows(), dy.rows()));  // rows of dw that are touched, at most
  count(s, Kernel::embedding, 0, bytes(dy, tokens, order) + 2 * rows * double(dw.cols()) * double(size_of(dw.dtype)));
}

// A norm, and the transposition that follows it where both FP8 forms are wanted.
static void count_norm_forward(Stream& s, Operand y, double inputs) {
  if (y.q && y.q_t) transpose(s, std::exchange(y.q_t, {}), y.q);
  count(s, Kernel::norm, 0, bytes(y) + inputs);
}
void rmsnorm_forward(Stream& s, Operand y, Tensor rstd, Tensor x, Tensor w, double) {
  count_norm_forward(s, y, bytes(rstd, x, w));
}
void rmsnorm_backward(Stream& s, const RmsnormBackward& g) {
  count(s, Kernel::norm, 0, bytes(g.dx, g.dx, g.dw, g.dw, g.dy, g.x, g.w, g.rstd));
}
void layernorm_forward(Stream& s, const LayernormForward& f) {
  count_norm_forward(s, f.y, bytes(f.mean, f.rstd, f.x, f.w, f.b));
}
void layernorm_backward(Stream& s, const LayernormBackward& g) {
  count(s, Kernel::norm, 0, bytes(g.dx, g.dx, g.dw, g.dw, g.db, g.db, g.dy, g.x, g.w, g.mean, g.rstd));
}

namespace {
// Bytes of the first R dimensions of all q and k heads, in whole memory sectors: if R < D they are pieces of a row.
double rotated_bytes(Tensor qkv, const Rope& rope) {
  constexpr int64_t kSector = 32;
  const Heads& h = rope.heads;
  const int64_t size = int64_t(size_of(qkv.dtype)), R = rope.table.shape[1] * 2;
  int64_t sectors = 0, counted = 0;  // sectors before `counted` have been counted
  const auto piece = [&](int64_t col) {
    const int64_t first = std::max(counted, col * size / kSector), end = ((col + R) * size + kSector - 1) / kSector;
    if (R > 0) sectors += end - first, counted = end;
  };
  for (int64_t i = 0; i < h.H; ++i) {
    piece(h.q(i));
    if (h.interleaved) piece(h.k(i));
  }
  for (int64_t i = 0; i < h.G && !h.interleaved; ++i) piece(h.k(i));
  return double(qkv.rows()) * double(sectors * kSector);
}
}  // namespace
void rope_forward(Stream& s, Tensor qkv, const Rope& rope) { count(s, Kernel::rope, 0, 2 * rotated_bytes(qkv, rope)); }
void rope_backward(Stream& s, Operand d_out, Tensor d_in, const Rope& rope) {
  const bool in_place = d_out.plain.data == d_in.data;
  if (in_place && !d_out.q && !d_out.q_t && !d_out.slot.amax) count(s, Kernel::rope, 0, 2 * rotated_bytes(d_in, rope));
  else
    count(s, Kernel::rope, 0,
          bytes(d_out.q, d_out.q_t, d_in) + (in_place ? rotated_bytes(d_in, rope) : bytes(d_out.plain)));
}

namespace {
// Pairs of a query and a key that attend, as an area: T*T/2 for a causal sequence; with a window, a band of its width
// below the diagonal. One product over all heads costs 2*D*H FLOPs a pair. Where documents begin depends on the data
// and is not planned: the pairs that they mask are counted too.
double product_flops(const Attention& a) {
  const double T = double(a.T), w = a.window > 0 ? std::min(T, double(a.window)) : T;
  return 2 * double(a.B) * double(a.heads.H * a.heads.D) * (w * T - w * w / 2);
}
// Refuses what the gpu engine has no kernel for (ops/gpu/attention.cu) when planning, before the first step would.
void require_kernel(const Target& t, int64_t D) {
  if (t.cuda && (D % 8 || D > 256))
    bad_input("model.head_dim (hidden_size / num_attention_heads, if it is not given) is ", D,
              ": attention on a GPU takes multiples of 8 up to 256; choose other sizes, or set device=cpu");
}
}  // namespace
void attention_forward(Stream& s, Tensor o, Tensor lse, Tensor qkv, const Attention& a, Tensor) {
  require_kernel(s.target(), a.heads.D);
  count(s, Kernel::attention_forward, 2 * product_flops(a), bytes(o, lse, qkv, a.documents));
}
void attention_backward(Stream& s, const AttentionBackward& g, const Attention& a) {
  // dv, dp, dq and dk; recomputing the scores is not counted
  count(s, Kernel::attention_backward, 4 * product_flops(a), bytes(g.dqkv, g.d_o, g.o, g.lse, g.qkv, a.documents));
}

void swiglu_forward(Stream& s, Operand y, Tensor gu) { count(s, Kernel::activation, 0, bytes(y, gu)); }
void swiglu_backward(Stream& s, Operand dgu, Tensor dy, Tensor gu) {
  count(s, Kernel::activation, 0, bytes(dgu, dy, gu));
}
void gelu_forward(Stream& s, Operand y, Tensor x, Gelu) { count(s, Kernel::activation, 0, bytes(y, x)); }
void gelu_backward(Stream& s, Operand dx, Tensor dy, Tensor x, Gelu) {
  count(s, Kernel::activation, 0, bytes(dx, dy, x));
}

void cross_entropy(Stream& s, Tensor losses, Tensor logits, Tensor targets, int64_t, LossFactor, Backward backward) {
  count(s, Kernel::loss, 0, bytes(losses, logits, targets) + (backward == Backward::yes ? bytes(logits) : 0));
}

}  // namespace octet::BACKEND
