#pragma once
// KvCache: the keys and values of a batch's tokens so far, in every layer. A prompt's pass writes them, each later pass
// adds those of one token a sequence and attends to all: no prefix is ever computed again.
// Dimension key:  L layers   B sequences   G key/value heads   S positions   D head size
#include "ops/decode.h"

namespace octet::BACKEND {

class KvCache {
 public:
  KvCache(Arena& memory, DType type, int64_t layers, int64_t sequences, int64_t positions, const Heads& h)
      : layer_{sequences, h.G, positions, h.D},
        k_(memory.alloc(type, {layers, layer_.numel()})),
        v_(memory.alloc(type, {layers, layer_.numel()})),
        start_(memory.alloc(DType::i32, {sequences})) {}

  // Prompts of unequal lengths stand one below the other, (B,T), each from column 0 on: what is behind its end is never
  // read, as every later token overwrites its place before it attends.
  void begin(Stream& s, const int32_t* lengths, int64_t count, int64_t longest) {
    B_ = count, longest_ = longest, step_ = -1;
    copy_to_device(s, start_.data, lengths, size_t(count) * sizeof(int32_t));
  }
  void advance() { ++step_; }  // to the next new token of every sequence: the first has step 0

  bool decodes() const { return step_ >= 0; }
  int64_t sequences() const { return B_; }
  int64_t positions() const { return layer_[2]; }
  int64_t first() const { return decodes() ? step_ : 0; }  // of the pass under way, behind start()
  Tensor start() const { return decodes() ? start_.part(0, {B_}) : Tensor{}; }
  int64_t longest() const { return longest_ + first() + 1; }  // keys that a query sees, at most
  KvRows layer(int64_t l) const {
    const Shape rows{B_, layer_[1], layer_[2], layer_[3]};
    return {k_.part(l * layer_.numel(), rows), v_.part(l * layer_.numel(), rows)};
  }

 private:
  Shape layer_;
  Tensor k_, v_;  // (L, B*G*S*D)
  Tensor start_;  // (B) i32: tokens of each prompt
  int64_t B_ = 0, longest_ = 0, step_ = -1;
};

}  // namespace octet::BACKEND
