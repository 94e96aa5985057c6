#pragma once
// Expert parallelism: rows are sent to the rank that holds their expert, and the results back (all-to-all). A rank
// receives into a buffer of fixed size; rows that do not fit take further rounds, whose activations are recomputed in
// the backward pass. So no token is ever dropped, and no memory depends on the routing.
// Dimension key:  E experts   K experts a token   N tokens   R rows of a buffer of experts' rows (ops/moe.h)
#include "nn/gated_experts.h"
#include "ops/moe.h"

namespace octet::BACKEND {

struct ExpertRound {                   // one rank's part of a round
  std::vector<Piece> sends, receives;  // rows of its own tokens, by receiver; rows of its buffer, by sender
  std::vector<int64_t> first;          // offsets of its experts in the buffer, and the end
};
// offset[r * (E+1) + e]: where rank r's rows for expert e begin; rows: of a buffer. All are multiples of kExpertRows.
// All ranks get the same number of rounds.
std::vector<ExpertRound> plan_rounds(const int32_t* offset, int64_t E, int ranks, int rank, int64_t rows);

class ExpertDispatch {
 public:
  ExpertDispatch(const ExpertRanks&, int64_t experts, int64_t per_token);

  // offset (E+1) i32: of this rank's rows. start() gathers all ranks' offsets and copies them to the host, finish()
  // waits for them and plans the rounds. A recomputation keeps the rounds of its forward pass.
  void start(Context&, Tensor offset, int64_t N);
  void finish(Context&);

  void forward(Context&, GatedExperts&, Tensor o /*(R,C)*/, Tensor x /*(R,C)*/);
  // On entry dx holds x if several_rounds(); on return its gradient.
  void backward(Context&, GatedExperts&, Tensor dx /*(R,C)*/, Tensor d_o /*(R,C)*/);
  bool several_rounds() const { return rounds_.size() > 1; }
  int64_t buffer_rows(int64_t N) const;

 private:
  int64_t all_rows(int64_t N) const;  // what this rank receives at most: all rows of all ranks
  int64_t most_rounds(int64_t N) const;
  ExpertBuffer buffer(size_t round) const;
  void receive(Context&, size_t round, Tensor rows, Tensor from);

  ExpertRanks ranks_;
  int64_t E_, K_, N_ = 0, reserved_ = 0;
  PinnedArray<int32_t> pinned_;    // (ranks, E+1): offsets of all ranks' own rows
  PinnedArray<int32_t> uploaded_;  // (rounds, experts of this rank + 1): offsets in this rank's buffer
  Tensor offsets_{};               // the same on the device
  std::unique_ptr<Event> arrived_;
  std::vector<ExpertRound> rounds_;  // of the last forward pass
};

}  // namespace octet::BACKEND
