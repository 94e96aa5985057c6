#pragma once
// Sizes of the workspaces that ops take, as functions of the target and the shapes: one rule for every engine, so that
// the plan is exact to the byte.
#include <algorithm>

#include "ops/ops.h"

namespace octet::BACKEND {

// Rows P of the `partial` buffers of two-stage column sums, and elements of sum_of_squares' partial.
inline int64_t partial_rows(const Target& t) { return t.cuda ? 2 * t.multiprocessors : 16; }
inline int64_t partial_sums(const Target& t) { return t.cuda ? 4 * t.multiprocessors : 64; }

// Who attends on a card: cuDNN where these say so, else our kernels. Of the two, `automatic` takes what is faster on an
// H200 (scripts/bench/RESULTS.md): our forward, and our backward of head size 64 or where bits must repeat.
inline bool attention_on_hopper(const Target& t, const Attention& a, DType plain) {  // by kernels made for it
  return t.cuda && t.compute_capability / 10 == 9 && plain == DType::bf16 && (a.heads.D == 64 || a.heads.D == 128);
}
// Of more than 2^32 elements cuDNN 9.19's gradients are wrong, without a word. It gets tensors of less than 2^31 bytes,
// the sum of dq in fp32 among them.
inline bool small_for_cudnn(const Attention& a) {
  const Heads& h = a.heads;
  return a.B * a.T * std::max(h.width() * 2, h.H * h.D * 4) < int64_t{1} << 31;
}
inline bool cudnn_attends(const Target& t, const Attention& a, DType plain) {
  return t.cuda && t.attention != AttentionKind::native && t.compute_capability >= 90 && plain == DType::bf16 &&
         a.window == 0 && small_for_cudnn(a);
}
inline bool cudnn_attends_forward(const Target& t, const Attention& a, DType plain) {
  return cudnn_attends(t, a, plain) && (t.attention == AttentionKind::cudnn || !attention_on_hopper(t, a, plain));
}
inline bool cudnn_attends_backward(const Target& t, const Attention& a, DType plain) {
  const bool ours = attention_on_hopper(t, a, plain) && (t.deterministic || a.heads.D == 64);
  return cudnn_attends(t, a, plain) && (t.attention == AttentionKind::cudnn || !ours);
}
// Bytes of the attention workspaces.
inline constexpr int64_t kCudnnSlack = int64_t{32} << 20;  // of cuDNN's own workspace, beyond what the formulas name

// What one call of cuDNN's deterministic backward takes of a batch: sequences and groups of heads. It keeps their T*T
// scores, which fit into 1 GiB or are those of a single group.
struct AttentionSlice {
  int64_t B = 1, G = 1, score_bytes = 0;
};
inline AttentionSlice attention_slice(const Attention& a) {
  const auto largest_divisor = [](int64_t n, int64_t bytes_each) {
    for (int64_t d = n; d > 1; --d)
      if (n % d == 0 && d * bytes_each <= int64_t{1} << 30) return d;
    return int64_t{1};
  };
  const int64_t rounded = (a.T + 127) / 128 * 128, group = a.heads.H / a.heads.G * rounded * rounded * 2;
  AttentionSlice s{.G = largest_divisor(a.heads.G, group)};
  if (s.G == a.heads.G) s.B = largest_divisor(a.B, s.G * group);
  s.score_bytes = s.B * s.G * group;
  return s;
}

// Between Hopper's two backward kernels: of each tile of 64 query rows their log-sums, then their delta, fp32, of one
// (batch, head) after the other; zeros beyond T.
inline constexpr int64_t kRowStatistics = 2 * 64;
inline int64_t row_tiles(int64_t T) { return (T + 63) / 64; }

// The parts of the backward workspace, in this order, each starting at a multiple of 256 bytes.
struct AttentionParts {
  int64_t delta = 0;  // (B,H,T) f32, rowsum(do*o); Hopper's kernels: kRowStatistics of each tile of rows
  int64_t dq = 0;     // (N,H*D) f32, where cuDNN sums dq over tiles of keys by atomic additions
  int64_t own = 0;    // cuDNN's
  int64_t total() const { return delta + dq + own; }
};
inline AttentionParts attention_backward_parts(const Target& t, const Attention& a, DType plain) {
  if (!t.cuda) return {};
  const auto aligned = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const bool in_tiles = attention_on_hopper(t, a, plain);
  AttentionParts parts{.delta = aligned(a.B * a.heads.H * (in_tiles ? row_tiles(a.T) * kRowStatistics : a.T) * 4)};
  if (!cudnn_attends_backward(t, a, plain)) return parts;
  const AttentionSlice slice = t.deterministic ? attention_slice(a) : AttentionSlice{.B = a.B, .G = a.heads.G};
  if (!t.deterministic) parts.dq = aligned(a.B * a.T * a.heads.H * a.heads.D * 4);
  const int64_t shared_heads = a.heads.H / a.heads.G;  // dk and dv of each query head in bf16, before their sum
  const int64_t heads_bytes = shared_heads == 1 ? 0 : slice.B * slice.G * shared_heads * a.T * a.heads.D * 4;
  parts.own = kCudnnSlack + aligned(heads_bytes) + aligned(slice.score_bytes);
  return parts;
}
inline int64_t attention_forward_workspace(const Target& t, const Attention& a, DType plain) {
  if (cudnn_attends_forward(t, a, plain)) return kCudnnSlack;
  return attention_on_hopper(t, a, plain) ? int64_t{sizeof(int32_t)} : 0;  // counts the tiles that blocks have taken
}
inline int64_t attention_backward_workspace(const Target& t, const Attention& a, DType plain) {
  return attention_backward_parts(t, a, plain).total();
}

// attention_decode on a card: parts into which the keys of a sequence are cut, so that few sequences still fill it. A
// block has up to kDecodeHeads query heads of a group; a part is not worth its joining below kDecodeKeys keys. The
// number follows from the positions that there is room for, so that every step is launched alike: a short sequence
// leaves parts empty.
inline constexpr int64_t kDecodeHeads = 8, kDecodeKeys = 64, kDecodeParts = 64;
inline int64_t decode_blocks(const Heads& h) { return h.G * ((h.H / h.G + kDecodeHeads - 1) / kDecodeHeads); }
inline int64_t decode_parts(const Target& t, const Heads& h, int64_t B, int64_t positions) {
  const int64_t wanted = (4 * t.multiprocessors + B * decode_blocks(h) - 1) / (B * decode_blocks(h));
  const int64_t most = (positions + kDecodeKeys - 1) / kDecodeKeys;
  return std::max<int64_t>(1, std::min({wanted, most, kDecodeParts}));
}
// First a counter for each block of a sequence: the parts that are done.
inline int64_t decode_counters(const Heads& h, int64_t B) { return (B * decode_blocks(h) * 4 + 255) / 256 * 256; }
// Then of each part and head D sums, maximum and sum of weights. Room for any number of keys and for fewer sequences.
inline int64_t attention_decode_workspace(const Target& t, const Heads& h, int64_t B) {
  if (!t.cuda) return 0;
  const int64_t parts = std::min(B * kDecodeParts, 4 * t.multiprocessors / decode_blocks(h) + 1 + B);
  return decode_counters(h, B) + parts * h.H * (h.D + 2) * 4;
}

}  // namespace octet::BACKEND
