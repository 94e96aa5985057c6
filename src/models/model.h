#pragma once
// Decoder: a stack of blocks between an embedding and a loss. An architecture adds a Block (models/llama.cpp) and a few
// parameter names (models/registry.cpp).
// Dimension key:  B batch   T time   N rows (= B*T)   C channels   V vocabulary   L layers
#include <memory>

#include "config/model.h"
#include "nn/head.h"

namespace octet::BACKEND {

class Block {
 public:
  virtual ~Block() = default;
  virtual void forward(Context&, Tensor y /*(N,C)*/, Tensor x /*(N,C)*/) = 0;
  virtual void backward(Context&, Tensor d /*(N,C)*/) = 0;  // d: dL/dy on entry, dL/dx on return
};

struct Architecture {
  std::unique_ptr<Block> (*block)(Builder, const ModelConfig&, int64_t layer, const Tensor& rope_table);
  Norm::Kind norm;
  const char *embedding, *final_norm, *head;  // parameter names (of the norm: without .weight)
};
const Architecture& architecture(Arch);  // models/registry.cpp

struct DeviceBatch {       // one micro-batch of a rank, on the device
  Tensor tokens, targets;  // (B,T) i32; target -100: ignored
  Tensor order;            // (N) i32: rows sorted by token, for the embedding's backward
  Tensor documents{};      // ops.h, Attention; none: tokens attend to all before them
};

struct DecoderOptions {
  int64_t recompute_blocks = 0;  // the first N blocks save their input only, and are recomputed in backward
  int64_t max_tokens = 0;        // T at most
  int64_t head_chunk = 0;        // rows of logits at a time; 0: automatic
  DType buffers = DType::f32;    // what the rotary table is rounded to
};

class Decoder {
 public:
  Decoder(Builder, const ModelConfig&, const DecoderOptions&);
  void materialise(Stream&, Arena& memory);  // the rotary table and routers' statistics; after the parameters

  // Forward and backward:  loss += sum of the losses of valid targets,  gradients += factor * its gradient.
  void train(Context&, const DeviceBatch&, Tensor loss /*(1) f64 +=*/, LossFactor factor);
  void evaluate(Context&, const DeviceBatch&, Tensor losses /*(N) wide*/);
  void logits(Context&, const DeviceBatch&, const LossHead::Sink&);
  // Generation, with c.cache: -> logits (n,V) wide of the next token after each of `rows` (all, if none), in c.saved.
  Tensor next(Context&, Tensor tokens /*(N) i32*/, Tensor rows /*(n) i32, or none*/);
  // (L,E) f64: tokens routed to each expert, over all ranks (with router_aux_loss_per_rank of this one), accumulated
  // until the caller zeroes it; none without experts.
  Tensor expert_load() const { return load_; }

 private:
  Tensor forward_from_start(Context&, const DeviceBatch&);  // forgets what was before -> the last block's output (N,C)
  Tensor embed(Context&, const DeviceBatch&);
  Tensor forward(Context&, Tensor x /*(N,C)*/);  // through all blocks -> (N,C)
  void backward(Context&, Tensor d /*(N,C)*/);   // d: allocated before forward(), as c.saved is rewound block by block
  void prefetch(Context&, int64_t l, int64_t step, Use);  // parallel.prefetch blocks: l + step, l + 2 step, ...
  Tensor final_norm(Context&, Tensor x);
  void router_losses(Context&, int64_t rows);  // between forward and backward
  using Leases = std::vector<ParameterStore::Lease>;
  Leases acquire(Context&, int64_t layer, Use);
  Leases acquire_head(Context&, Use);

  static constexpr int kEmbedding = 0;  // its unit of parameters
  ModelConfig config_;
  DecoderOptions options_;
  DType rope_dtype_;  // f32 or f64: what kernels read
  Tensor rope_table_{};
  Tensor sums_{}, total_{}, load_{};  // (L,3,E), (3,E), (L,E) f64, ops/moe.h; where there are experts
  std::unique_ptr<Embedding> embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<int> units_;  // the first unit of parameters of each block, which may have several; then the head's
  std::unique_ptr<Norm> norm_;
  std::unique_ptr<LossHead> head_;
  std::vector<Tensor> inputs_;  // of each block, (N,C)
  std::vector<size_t> marks_;   // of c.saved, at the beginning of each block
};

}  // namespace octet::BACKEND
