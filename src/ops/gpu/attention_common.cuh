#pragma once
// What all bf16 attention kernels share: where heads are in a row of qkv, the order of tiles, the mask, the launch.
#include <algorithm>
#include <cstdint>

#include "device/gpu.h"
#include "device/gpu_code.h"
#include "ops/gpu/instructions.cuh"
#include "ops/ops.h"

namespace octet::BACKEND {

struct QkvLayout {  // element offsets in a row of qkv: linear in the head, as Heads has them
  int64_t width, q_step, kv_step, k0, v0;
  explicit QkvLayout(const Heads& h)
      : width(h.width()), q_step(h.q(1)), kv_step(h.k(1) - h.k(0)), k0(h.k(0)), v0(h.v(0)) {}
};

// Which tile a thread block takes. Heads are processed in sections whose keys and values fit into L2; within a section
// the longest tiles come first, so that short ones fill the gaps at the end. With few blocks these gaps cost more than
// memory traffic does: then all heads form one section.
struct Schedule {
  int tiles, heads, section;  // row tiles of a head; heads of all sequences together; heads of a section
  bool longest_last;          // the last tile of a head is the longest one: taken first
  __device__ void pick(int block, int* tile, int* head) const {
    const int s = block / (section * tiles), first = s * section, n = min(section, heads - first);
    const int r = block - first * tiles;
    *tile = longest_last ? tiles - 1 - r / n : r / n;
    *head = first + r % n;
  }
  int blocks() const { return tiles * heads; }
};
inline Schedule schedule(int64_t T, int rows, int64_t heads, int64_t bytes_per_head, bool longest_last) {
  constexpr int64_t kCached = 24 << 20, kFewBlocks = 2048;  // half the L2 cache of an H100; eight waves there
  const int64_t tiles = (T + rows - 1) / rows;
  const int64_t section = std::clamp<int64_t>(kCached / std::max<int64_t>(bytes_per_head, 1), 1, heads);
  return {int(tiles), int(heads), int(tiles * heads < kFewBlocks ? heads : section), longest_last};
}

// What the rows of a tile of scores are: queries, or keys where scores are computed transposed.
enum class Rows { queries, keys };

struct Span {  // positions of a sequence: begin .. end - 1
  int begin, end;
  __device__ bool contains(int position) const { return position >= begin && position < end; }
};
// The columns of a tile's scores that at least one of its rows attends to, and those that all of them do. Of a tile of
// columns, the rows attend to none or to all; if it is neither, the mask has to be applied.
struct Attended {
  Span some, every;
  __device__ bool none(int column0, int columns) const {
    return column0 >= some.end || column0 + columns <= some.begin;
  }
  __device__ bool all(int column0, int columns) const {
    return column0 >= every.begin && column0 + columns <= every.end;
  }
};
// The causal mask, with a window and within documents. A query attends to one span of keys, and a key is attended to by
// one span of queries; both ends of either never decrease from a position to the next. Positions beyond T (in the last
// tile) count as of the last document.
struct Mask {
  int window, T;
  const int32_t *begins, *ends;  // (B,T): of the document of each position; or null

  __device__ Span keys_of(int b, int query) const {
    int begin = max(0, query - window + 1);
    if (begins) begin = max(begin, begins[int64_t(b) * T + min(query, T - 1)]);
    return {begin, query + 1};
  }
  __device__ Span queries_of(int b, int key) const {
    int end = key + window;
    if (ends) end = min(end, ends[int64_t(b) * T + min(key, T - 1)]);
    return {key, end};
  }
  template <Rows kRows>
  __device__ Span columns_of(int b, int row) const {
    return kRows == Rows::queries ? keys_of(b, row) : queries_of(b, row);
  }
  template <Rows kRows>
  __device__ Attended columns_of_tile(int b, int row0, int rows) const {
    const Span first = columns_of<kRows>(b, row0), last = columns_of<kRows>(b, row0 + rows - 1);
    return {.some = {first.begin, last.end}, .every = {last.begin, first.end}};
  }
};
inline Mask mask_of(const Attention& a) {
  const Tensor& d = a.documents;
  return {.window = int(a.window > 0 ? std::min(a.window, a.T) : a.T),
          .T = int(a.T),
          .begins = d ? d.ptr<int32_t>() : nullptr,
          .ends = d ? d.ptr<int32_t>() + a.B * a.T : nullptr};
}

// run<F>() with the first of a kernel's forms whose shared memory the card has.
template <class F, class... Smaller, class Run>
void first_that_fits(const Stream& s, Run&& run) {
  if constexpr (sizeof...(Smaller) > 0)
    if (F::kSharedBytes > shared_room(s.target().compute_capability)) return first_that_fits<Smaller...>(s, run);
  run.template operator()<F>();
}
template <class Params>
void launch(void (*kernel)(Params), int blocks, int threads, int shared_bytes, Stream& s, const Params& p) {
  CHECK(shared_bytes <= shared_room(s.target().compute_capability), shared_bytes, " bytes of shared memory");
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  kernel<<<unsigned(blocks), unsigned(threads), size_t(shared_bytes), raw(s)>>>(p);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace octet::BACKEND
