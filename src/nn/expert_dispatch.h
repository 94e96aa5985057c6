#pragma once
// Experts that are spread over ranks: rows travel to the rank that holds their expert and come back. A rank receives
// into a buffer of a fixed size; what does not fit into it goes in further rounds, whose activations are computed again
// in the backward pass, so that no token is ever dropped and no memory depends on the routing.
// Dimension key:  E experts   K experts a token   N tokens   R rows of a buffer of experts' rows (ops/moe.h)
#include "nn/gated_experts.h"
#include "ops/moe.h"

namespace octet::BACKEND {

struct ExpertRound {              // of a rank
  std::vector<Piece> away, here;  // rows of its own tokens; rows of its buffer
  std::vector<int64_t> first;     // of its experts in the buffer, and behind the last
};
// offset[r * (E+1) + e]: where rank r's rows for expert e begin; multiples of what `rows`, the buffer's, is one of,
// too. All ranks have the same number of rounds.
std::vector<ExpertRound> plan_rounds(const int32_t* offset, int64_t E, int ranks, int rank, int64_t rows);

class ExpertDispatch {
 public:
  ExpertDispatch(const ExpertRanks&, int64_t experts, int64_t per_token);

  // offset (E+1) i32 of this rank's rows. start() sends what the ranks must know of each other to the host, finish()
  // waits for it; a recomputation goes the way that it went before.
  void start(Context&, Tensor offset, int64_t N);
  void finish(Context&);

  void forward(Context&, GatedExperts&, Tensor o /*(R,C)*/, Tensor x /*(R,C)*/);
  // dx holds x again if several_rounds(), and then its gradient.
  void backward(Context&, GatedExperts&, Tensor dx /*(R,C)*/, Tensor d_o /*(R,C)*/);
  bool several_rounds() const { return rounds_.size() > 1; }
  int64_t buffer_rows(int64_t N) const;

 private:
  int64_t all_rows(int64_t N) const;  // of all ranks, if this one held every expert that is chosen
  int64_t most_rounds(int64_t N) const;
  ExpertBuffer buffer(size_t round) const;
  void receive(Context&, size_t round, Tensor rows, Tensor from);

  struct Unpin {
    void operator()(int32_t* p) const noexcept { pinned_free(p); }
  };
  ExpertRanks ranks_;
  int64_t E_, K_, N_ = 0, reserved_ = 0;
  std::unique_ptr<int32_t, Unpin> pinned_;    // (ranks, E+1): offsets of all ranks' rows
  std::unique_ptr<int32_t, Unpin> uploaded_;  // (rounds, experts of this rank + 1): of the buffer's
  Tensor offsets_{};                          // the same on the device
  std::unique_ptr<Event> arrived_;
  std::vector<ExpertRound> rounds_;  // of the last forward pass
};

}  // namespace octet::BACKEND
