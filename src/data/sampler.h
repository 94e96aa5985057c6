#pragma once
// The next token from logits, in the order of transformers: repetition penalty, temperature, top-k, top-p.
// The random numbers are counted by (seed, sequence, position): they depend on no batch and no other sequence.
#include <span>
#include <vector>

#include "config/sampling.h"

namespace octet {

class Sampler {  // of one sequence
 public:
  Sampler(const Sampling& options, uint64_t sequence, std::span<const int32_t> prompt);
  // logits: of the whole vocabulary, without padding; changed. Remembers what it chose.
  int32_t next(std::span<float> logits);

 private:
  int32_t draw(std::span<float> logits);
  Sampling options_;
  uint64_t sequence_, position_ = 0;
  std::vector<int32_t> seen_;        // distinct tokens
  std::vector<bool> is_seen_;        // by token
  std::vector<int32_t> candidates_;  // of draw(), kept for their memory
  std::vector<double> weights_;      // by token
  void see(int32_t token);
};

}  // namespace octet
