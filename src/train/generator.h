#pragma once
// Generator: a model that continues prompts, one token of every sequence at a time.
// Dimension key:  B sequences   T tokens of the longest prompt   S positions   V vocabulary (padded)
#include "train/session.h"

namespace octet::BACKEND {

void load_weights(Session&, const std::string& model);  // of a folder; "": random ones

class Generator {
 public:
  // Room for training.micro_batch_size sequences of training.seq_len positions, whose prompts have
  // `prompt` tokens at most.
  Generator(const RunConfig&, Host&, const PlanResult&, int64_t prompt, const Device::Options&);

  using Prompts = std::span<const std::vector<int32_t>>;
  Tensor read(Prompts);        // -> (B,V) wide: logits of each sequence's first new token. Forgets what was before.
  Tensor next(Tensor tokens);  // (B) i32 on the device, the next of each sequence -> (B,V): logits of what follows
  int64_t sequences() const { return cache_.sequences(); }
  Tensor new_tokens() const { return new_tokens_.part(0, {sequences()}); }  // (B) i32: a place for next()'s argument
  Tensor largest() const { return largest_.part(0, {sequences()}); }        // (B) wide: a place for argmax's
  Session session;

 private:
  Context context(int64_t T);
  KvCache cache_;
  Recording step_;
  Tensor stepped_{}, logits_{};        // what the recorded step reads and gives
  Tensor tokens_, rows_, new_tokens_;  // (B,T), (B): each prompt's last row, (B), all i32
  Tensor largest_;
};

}  // namespace octet::BACKEND
