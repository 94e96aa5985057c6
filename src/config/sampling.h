#pragma once
// How the next token is chosen, and the requests for generation and evaluation that the command
// line passes to the engines.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace octet {

struct Sampling {
  double temperature = 0;  // 0: the likeliest token
  int64_t top_k = 0;       // the likeliest k only; 0: all
  double top_p = 1;        // the likeliest whose probabilities reach p; 1: all
  double penalty = 1;      // on the logits of tokens in the prompt or generated so far
  uint64_t seed = 0;
  // The token is always the one with the largest logit, which the device finds by itself.
  bool greedy() const { return temperature == 0 && penalty == 1; }
};

struct GenerateRequest {
  std::string model;  // folder; "": random weights
  std::vector<std::vector<int32_t>> prompts;
  int64_t max_new_tokens = 0;
  std::vector<int32_t> stop;  // a sequence ends with one of these
  Sampling sampling;
  std::function<void(size_t prompt, int32_t token)> on_token;  // as they come: of one prompt in order
};
struct GenerateResult {
  enum class End { stop, length, positions };  // a stop token, max_new_tokens, the model's range
  struct Sequence {
    std::vector<int32_t> tokens;  // new ones, the stop token with them
    End end = End::length;
  };
  std::vector<Sequence> sequences;
  std::string device;
  // A prompt's pass gives the first new token, the others come one by one.
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t prefill_tokens = 0, decode_tokens = 0;
};

// Losses of given tokens, a batch of training.micro_batch_size sequences at a time.
struct EvaluateRequest {
  struct Rows {  // (B,T); target -100: no loss
    std::span<int32_t> tokens, targets;
    std::span<int32_t> begins, ends;  // of each token's document, with data.intra_document_mask; else empty
  };
  std::string model;                                  // folder
  std::function<bool(Rows)> next;                     // fills a batch; false: there are no more
  std::function<void(std::span<const double>)> take;  // the losses of that batch, (B,T)
};

}  // namespace octet
