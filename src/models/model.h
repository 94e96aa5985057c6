#pragma once
// A decoder is a stack of blocks between an embedding and a loss; an architecture is a Block and a few names
// (models/registry.cpp). See models/llama.cpp.
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
  const char *embedding, *final_norm, *head;  // names of parameters (norm: without .weight)
};
const Architecture& architecture(Arch);  // models/registry.cpp

struct DeviceBatch {       // one micro-batch of a rank, on the device
  Tensor tokens, targets;  // (B,T) i32; target -100: no loss
  Tensor order;            // (N) i32: rows sorted by token, for the embedding's backward
};

struct DecoderOptions {
  int64_t recompute_blocks = 0;  // the first N blocks keep only their input
  int64_t max_tokens = 0;        // T at most
  int64_t head_chunk = 0;        // rows of logits at a time; 0: chosen
  DType buffers = DType::f32;    // what the sines and cosines of positions are rounded to
};

class Decoder {
 public:
  Decoder(Builder, const ModelConfig&, const DecoderOptions&);
  void materialise(Stream&, Arena& memory);  // the rotary table; after the parameters

  // Forward and backward: loss += sum over valid targets, gradients += factor * theirs.
  void train(Context&, const DeviceBatch&, Tensor loss /*(1) f64 +=*/, LossFactor factor);
  void evaluate(Context&, const DeviceBatch&, Tensor losses /*(N) wide*/);
  void logits(Context&, const DeviceBatch&, const LossHead::Sink&);
  // Generation, with c.cache: logits (n,V) wide behind the named rows of the pass, all if none are named; in c.saved.
  Tensor next(Context&, Tensor tokens /*(N) i32*/, Tensor rows /*(n) i32*/);
  // (L,E) f64: tokens that chose each expert, all ranks together, added up until somebody zeroes it; none without
  // experts.
  Tensor expert_load() const { return load_; }

 private:
  Tensor embed(Context&, const DeviceBatch&);
  Tensor forward(Context&, Tensor x /*(N,C)*/);  // through all blocks -> (N,C)
  void backward(Context&, Tensor d /*(N,C)*/);   // d was allocated before forward(): memory comes back block by block
  void prefetch(Context&, int64_t l, int64_t step, Use);  // parallel.prefetch blocks from l on, l not included
  Tensor final_norm(Context&, Tensor x);
  void judge_routers(Context&, int64_t rows);  // between forward and backward
  using Leases = std::vector<ParameterStore::Lease>;
  Leases acquire(Context&, int64_t layer, Use);

  ModelConfig config_;
  DecoderOptions options_;
  DType rope_dtype_;  // f32 or f64: what kernels read
  Tensor rope_table_{};
  Tensor sums_{}, total_{}, load_{};  // (L,3,E), (3,E), (L,E) f64, ops/moe.h; where there are experts
  std::unique_ptr<Embedding> embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<int> units_;  // of parameters: the first of each block, which may have several, and last the head's
  std::unique_ptr<Norm> norm_;
  std::unique_ptr<LossHead> head_;
  std::vector<Tensor> inputs_;  // of each block, (N,C)
  std::vector<size_t> marks_;   // of c.saved, where each block began
};

}  // namespace octet::BACKEND
