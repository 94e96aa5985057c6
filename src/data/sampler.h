#pragma once
// The next token from logits, in the order of transformers: repetition penalty, temperature, top-k, top-p.
// The random numbers are counted by (seed, sequence, position): they depend on no batch and no other sequence.
// A step reads the vocabulary a few times, sorts only what it must, and allocates nothing after the first.
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
  int32_t draw(std::span<const float> logits);
  int32_t draw_of_all(std::span<const float> logits, double u);
  int32_t draw_of_k(std::span<const float> logits, double u);
  int32_t draw_of_p(std::span<const float> logits, double u);
  double weigh(std::span<const float> logits);  // their sum
  void sort_into_buckets(std::span<const float> logits);
  void collect_bucket(std::span<const float> logits, int32_t bucket);
  void collect_likeliest(std::span<const float> logits, size_t k);
  void sort_candidates(std::span<const float> logits, size_t most);
  void see(int32_t token);

  Sampling options_;
  uint64_t sequence_, position_ = 0;
  std::vector<int32_t> seen_;  // distinct tokens
  std::vector<bool> is_seen_;  // by token
  // Of draw(), kept for their memory.
  std::vector<int32_t> candidates_;     // by descending logit
  std::vector<double> weights_, sums_;  // by token; of blocks of them
  std::vector<uint16_t> bucket_;        // by token
  std::vector<double> mass_;            // weight of a bucket's tokens
  std::vector<float> maxima_, sorted_;  // of blocks of logits
};

}  // namespace octet
