#pragma once
// The token embedding at the start of a decoder; projection onto the vocabulary and cross-entropy at its end. Logits
// exist for a chunk of rows at a time: a chunk's forward product, loss, gradient and both backward products follow each
// other before the next chunk begins.
// Dimension key:  N rows   C channels   V vocabulary (padded)
#include <functional>

#include "nn/norm.h"

namespace octet::BACKEND {

class Embedding {
 public:
  Embedding(Builder b, const std::string& name, Shape shape /*(V,C)*/, Init init)
      : w_(b.params.add({{name, shape}}, init)) {}
  void forward(Context& c, Tensor y /*(N,C)*/, Tensor tokens /*(N) i32*/) {
    embedding_forward(c.stream, y, tokens, c.params.value(w_).plain);
  }
  void backward(Context& c, Tensor dy /*(N,C)*/, Tensor tokens, Tensor order /*(N) i32*/) {
    embedding_backward(c.stream, c.params.grad(c.stream, w_), dy, tokens, order);
  }
  const Param& weight() const { return w_; }

 private:
  Param w_;
};

class LossHead {
 public:
  struct Options {
    int64_t vocabulary = 0;  // without padding
    int64_t chunk = 0;       // rows of logits at a time
  };
  LossHead(Param w, const Options& options) : w_(w), options_(options) {}
  // loss += sum of the rows' losses;  d (N,C) = factor * its gradient by x,  dW += factor * its
  // gradient by W. d may be x.
  void train(Context&, Tensor loss /*(1) f64 +=*/, Tensor d, Tensor x /*(N,C)*/, Tensor targets /*(N) i32*/,
             LossFactor factor);
  void evaluate(Context&, Tensor losses /*(N) wide*/, Tensor x /*(N,C)*/, Tensor targets);
  using Sink = std::function<void(int64_t first_row, Tensor logits /*(rows,V)*/)>;
  void logits(Context&, Tensor x /*(N,C)*/, const Sink&);  // chunk by chunk; the next one overwrites the last
  void logits(Context&, Tensor y /*(N,V) wide*/, Tensor x /*(N,C)*/);

 private:
  int64_t chunk(int64_t rows) const { return std::min(rows, options_.chunk); }
  Param w_;  // (V,C): its own, or the embedding's where tied
  Options options_;
};

}  // namespace octet::BACKEND
