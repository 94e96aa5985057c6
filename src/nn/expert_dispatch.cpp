#include "nn/expert_dispatch.h"

#include <algorithm>
#include <cmath>

namespace octet::BACKEND {

// All that a rank receives is one sequence of rows, by expert and then by sender; a round is a window of `rows` of it.
std::vector<ExpertRound> plan_rounds(const int32_t* offset, int64_t E, int ranks, int rank, int64_t rows) {
  const int64_t held = E / ranks;
  const auto begin = [&](int r, int64_t e) { return int64_t(offset[r * (E + 1) + e]); };
  std::vector<ExpertRound> rounds;
  for (int to = 0; to < ranks; ++to) {
    int64_t at = 0;  // in the sequence of `to`
    const auto round = [&](int64_t position) -> ExpertRound& {
      if (rounds.size() <= size_t(position / rows)) rounds.resize(size_t(position / rows) + 1);
      return rounds[size_t(position / rows)];
    };
    for (int64_t e = to * held; e < (to + 1) * held; ++e)
      for (int from = 0; from < ranks; ++from)
        for (int64_t row = begin(from, e), count; row < begin(from, e + 1); row += count, at += count) {
          count = std::min(begin(from, e + 1) - row, rows - at % rows);
          ExpertRound& now = round(at);
          if (from == rank) now.sends.push_back({to, row, count});
          if (to == rank) now.receives.push_back({from, at % rows, count});
        }
  }
  for (size_t i = 0; i < rounds.size(); ++i) {
    int64_t at = 0;
    for (int64_t e = rank * held; e <= (rank + 1) * held; ++e) {
      rounds[i].first.push_back(std::clamp<int64_t>(at - int64_t(i) * rows, 0, rows));
      for (int from = 0; e < E && from < ranks; ++from) at += begin(from, e + 1) - begin(from, e);
    }
  }
  return rounds;
}

ExpertDispatch::ExpertDispatch(const ExpertRanks& ranks, int64_t experts, int64_t per_token)
    : ranks_(ranks), E_(experts), K_(per_token), pinned_(pinned_array<int32_t>(ranks.group->size() * (experts + 1))) {
  CHECK(experts % ranks.group->size() == 0, experts, " experts on ", ranks.group->size(), " ranks");
}

// On average a rank receives as many rows as its own tokens have, and half a kExpertRows of padding for each expert of
// each sender. More than all rows of all ranks never arrive.
int64_t ExpertDispatch::buffer_rows(int64_t N) const {
  const double mean = double(N * K_) + double(E_) * kExpertRows / 2;
  return padded_rows(int64_t(std::ceil(std::min(ranks_.buffer * mean, double(all_rows(N))))));
}

int64_t ExpertDispatch::all_rows(int64_t N) const { return ranks_.group->size() * expert_rows(N, E_, K_); }

int64_t ExpertDispatch::most_rounds(int64_t N) const { return (all_rows(N) - 1) / buffer_rows(N) + 1; }

void ExpertDispatch::start(Context& c, Tensor offset, int64_t N) {
  N_ = N;
  if (c.pass == Pass::recompute) return;
  const Arena::Scope scope(c.scratch);
  const int64_t ranks = ranks_.group->size();
  const Tensor all = c.scratch.alloc(DType::i32, {ranks, E_ + 1});
  ranks_.group->all_gather(c.stream, all, offset);
  moe_fetch_offsets(c.stream, pinned_.get(), all, N * K_);
  if (!arrived_) arrived_ = std::make_unique<Event>(c.stream.device());
  arrived_->record(c.stream);
}

// Once the offsets have arrived, all earlier work of the stream is done, so the last upload no longer reads uploaded_.
void ExpertDispatch::finish(Context& c) {
  const int64_t ranks = ranks_.group->size(), width = E_ / ranks + 1, most = most_rounds(N_);
  if (c.pass != Pass::recompute) {
    arrived_->synchronize();
    rounds_ = plan_rounds(pinned_.get(), E_, int(ranks), ranks_.group->rank(), buffer_rows(N_));
    CHECK(int64_t(rounds_.size()) <= most, rounds_.size(), " rounds where at most ", most, " were expected");
    if (reserved_ < most * width) uploaded_ = pinned_array<int32_t>(reserved_ = most * width);
    for (size_t i = 0; i < rounds_.size(); ++i)
      std::copy(rounds_[i].first.begin(), rounds_[i].first.end(), uploaded_.get() + int64_t(i) * width);
  }
  Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
  offsets_ = memory.alloc(DType::i32, {most, width});
  copy_to_device(c.stream, offsets_.data, uploaded_.get(), rounds_.size() * size_t(width) * sizeof(int32_t));
}

ExpertBuffer ExpertDispatch::buffer(size_t round) const {
  return {{.offset = offsets_.row_range(int64_t(round), 1), .assignments = N_ * K_}, rounds_[round].first};
}

void ExpertDispatch::receive(Context& c, size_t round, Tensor rows, Tensor from) {
  const ExpertRound& r = rounds_[round];
  ranks_.group->all_to_all(c.stream, rows, r.receives, from, r.sends);
  fill_zero(c.stream, rows.row_range(r.first.back(), rows.rows() - r.first.back()));
}

void ExpertDispatch::forward(Context& c, GatedExperts& experts, Tensor o, Tensor x) {
  const Arena::Scope all(c.scratch);
  const Tensor result = c.scratch.alloc(x.dtype, {buffer_rows(N_), x.cols()});
  for (size_t i = 0; i < rounds_.size(); ++i) {
    const Arena::Scope scope(c.scratch);
    experts.forward(c, result, buffer(i), [&](Tensor rows) { receive(c, i, rows, x); });
    ranks_.group->all_to_all(c.stream, o, rounds_[i].sends, result, rounds_[i].receives);
  }
}

// From the last round, whose activations are still there, to the first. A row of x in dx is sent for the last time
// before its gradient arrives in its place.
void ExpertDispatch::backward(Context& c, GatedExperts& experts, Tensor dx, Tensor d_o) {
  const Tensor result = c.scratch.alloc(dx.dtype, {buffer_rows(N_), dx.cols()});
  for (size_t i = rounds_.size(); i-- > 0;) {
    if (i + 1 < rounds_.size()) {
      const Arena::Scope scope(c.scratch);
      Context again = c;
      again.pass = Pass::recompute;
      experts.reopen(again);
      experts.forward(again, result, buffer(i), [&](Tensor rows) { receive(c, i, rows, dx); });
    }
    experts.backward(c, result, buffer(i), [&](Tensor rows) { receive(c, i, rows, d_o); });
    ranks_.group->all_to_all(c.stream, dx, rounds_[i].sends, result, rounds_[i].receives);
  }
}

}  // namespace octet::BACKEND
