#pragma once
// Sizes of the workspaces that ops take, from the target and the shapes alone, so that the plan engine finds to the
// byte what the gpu engine uses. Also which attention implementation runs, as the sizes depend on it.
#include <algorithm>

#include "ops/ops.h"

namespace octet::BACKEND {

// Rows P of the `partial` buffers of two-stage column sums, and elements of sum_of_squares' partial.
inline int64_t partial_rows(const Target& t) { return t.cuda ? 2 * t.multiprocessors : 16; }
inline int64_t partial_sums(const Target& t) { return t.cuda ? 4 * t.multiprocessors : 64; }

// Which attention runs on a GPU: cuDNN's where cudnn_attends_...() says so, else our kernels. AttentionKind::automatic
// takes the faster of the two on an H200 (scripts/bench/RESULTS.md): our forward on Hopper, and our backward there for
// head size 64 or where results must be deterministic.
inline bool attention_on_hopper(const Target& t, const Attention& a, DType plain) {  // ours is the wgmma kernel
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
         a.window == 0 && !a.documents && small_for_cudnn(a);
}
inline bool cudnn_attends_forward(const Target& t, const Attention& a, DType plain) {
  return cudnn_attends(t, a, plain) && (t.attention == AttentionKind::cudnn || !attention_on_hopper(t, a, plain));
}
inline bool cudnn_attends_backward(const Target& t, const Attention& a, DType plain) {
  const bool ours = attention_on_hopper(t, a, plain) && (t.deterministic || a.heads.D == 64);
  return cudnn_attends(t, a, plain) && (t.attention == AttentionKind::cudnn || !ours);
}
// Bytes of the attention workspaces.
inline constexpr int64_t kCudnnSlack = int64_t{32} << 20;  // cuDNN's own needs beyond the formulas below

// cuDNN's deterministic backward keeps all T*T scores of what it is called with. So it is called with slices of the
// batch, B sequences x G groups of heads, whose scores fit into 1 GiB (or are those of a single group).
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

// What Hopper's dq kernel leaves for its dk, dv kernel: (B, H, row_tiles, 2, 64) f32, of every tile of 64 query rows
// their -lse log2(e), then their delta; zeros beyond T.
inline constexpr int64_t kRowStatistics = 2 * 64;
inline int64_t row_tiles(int64_t T) { return (T + 63) / 64; }

// The parts of the backward workspace, in this order, each starting at a multiple of 256 bytes.
struct AttentionParts {
  int64_t delta = 0;  // rowsum(do*o), (B,H,T) f32; Hopper's kernels: the statistics above
  int64_t dq = 0;     // (N,H*D) f32, into which cuDNN sums dq over tiles of keys by atomic additions
  int64_t own = 0;    // cuDNN's own workspace
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
  return attention_on_hopper(t, a, plain) ? int64_t{sizeof(int32_t)} : 0;  // the tile scheduler's counter
}
inline int64_t attention_backward_workspace(const Target& t, const Attention& a, DType plain) {
  return attention_backward_parts(t, a, plain).total();
}

// Split-KV of attention_decode on a GPU: into how many parts the keys of a sequence are split, so that few sequences
// still fill the card. A thread block takes one part for up to kDecodeHeads query heads of a group; parts below
// kDecodeKeys keys cost more to combine than they gain. The number depends on the cache's size, not on the sequences'
// lengths, so that every step launches the same grid (and can be replayed as a CUDA graph): short sequences leave parts
// empty.
inline constexpr int64_t kDecodeHeads = 8, kDecodeKeys = 64, kDecodeParts = 64;
inline int64_t decode_blocks(const Heads& h) { return h.G * ((h.H / h.G + kDecodeHeads - 1) / kDecodeHeads); }
inline int64_t decode_parts(const Target& t, const Heads& h, int64_t B, int64_t positions) {
  const int64_t wanted = (4 * t.multiprocessors + B * decode_blocks(h) - 1) / (B * decode_blocks(h));
  const int64_t most = (positions + kDecodeKeys - 1) / kDecodeKeys;
  return std::max<int64_t>(1, std::min({wanted, most, kDecodeParts}));
}
// The workspace begins with a counter for each (sequence, decode block): how many of its parts are done.
inline int64_t decode_counters(const Heads& h, int64_t B) { return (B * decode_blocks(h) * 4 + 255) / 256 * 256; }
// For each part and head follow D sums, the maximum and the sum of weights. Enough for any number of keys, and for any
// smaller B.
inline int64_t attention_decode_workspace(const Target& t, const Heads& h, int64_t B) {
  if (!t.cuda) return 0;
  const int64_t parts = std::min(B * kDecodeParts, 4 * t.multiprocessors / decode_blocks(h) + 1 + B);
  return decode_counters(h, B) + parts * h.H * (h.D + 2) * 4;
}

}  // namespace octet::BACKEND
