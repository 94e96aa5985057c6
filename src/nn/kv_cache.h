#pragma once
// KvCache: the keys and values of all tokens of a batch so far, in every layer. The pass of a prompt writes them; each
// later pass appends those of one token a sequence, which attends to all.
// Dimension key:  L layers   B sequences   G key/value heads   S positions   D head size
#include "ops/decode.h"
#include "ops/workspace.h"

namespace octet::BACKEND {

class KvCache {
 public:
  KvCache(Arena& memory, DType type, int64_t layers, const Shape& layer /*(B,G,S,D)*/, int64_t workspace_bytes)
      : layer_(layer),
        k_(memory.alloc(type, {layers, layer_.numel()})),
        v_(memory.alloc(type, {layers, layer_.numel()})),
        position_(memory.alloc(DType::i32, {layer_[0]})),
        workspace_(memory.alloc(DType::e4m3, {workspace_bytes})) {}

  // Prompts of unequal lengths are the rows of (B,T), each from column 0 on (right-padded). The padding's keys are
  // never read: every later token overwrites its place before it attends.
  void begin(Stream& s, const int32_t* last /*position of each*/, int64_t count, int64_t longest) {
    B_ = count, longest_ = longest, decodes_ = false;
    copy_to_device(s, position_.data, last, size_t(count) * sizeof(int32_t));
    fill_zero(s, workspace_);
  }
  // To the next token of every sequence: on the host; and on the device, where each layer reads the positions.
  void advance() {
    CHECK(++longest_ <= positions(), "a sequence of ", longest_, " tokens where there is room for ", positions());
    decodes_ = true;
  }
  void advance(Stream& s) const { BACKEND::advance(s, position()); }

  bool decodes() const { return decodes_; }
  int64_t sequences() const { return B_; }
  int64_t positions() const { return layer_[2]; }
  Tensor position() const { return position_.part(0, {B_}); }
  Tensor workspace() const { return workspace_; }
  KvRows layer(int64_t l) const {
    const Shape rows{B_, layer_[1], layer_[2], layer_[3]};
    return {k_.part(l * layer_.numel(), rows), v_.part(l * layer_.numel(), rows)};
  }

 private:
  Shape layer_;
  Tensor k_, v_;      // (L, B*G*S*D)
  Tensor position_;   // (B) i32: of each sequence's newest token
  Tensor workspace_;  // of attention_decode
  int64_t B_ = 0, longest_ = 0;
  bool decodes_ = false;
};

}  // namespace octet::BACKEND
