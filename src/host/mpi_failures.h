#pragma once
// What ranks of MPI that fail tell one another, beside all that is under way between them. The others may do anything
// meanwhile and never answer: nothing here waits for them longer than it says, or fails.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <thread>
#include <utility>
#include <vector>

namespace octet {

class MpiFailures {
 public:
  // comm: of all ranks, for nothing else. machine: those of them that share this one, the first speaks for the others.
  MpiFailures(MPI_Comm comm, int rank, int size, std::vector<int> machine)
      : comm_(comm), rank_(rank), size_(size), machine_(std::move(machine)), heard_{{{0}, {machine_.front()}}} {}

  void tell(uint64_t word) noexcept {
    word_ = word;
    const auto send = [&](int to) { MPI_Isend(&word_, 1, MPI_UINT64_T, to, 0, comm_, &sends_.emplace_back()); };
    if (rank_ == 0)
      for (int r = 1; r < size_; ++r) send(r);
    else if (rank_ == machine_.front())
      for (size_t i = 1; i < machine_.size(); ++i) send(machine_[i]);
  }

  // Whether one that speaks for this rank tells of `word`, within `seconds`. Others hear of this one's meanwhile.
  bool hears(uint64_t word, double seconds) noexcept {
    using Clock = std::chrono::steady_clock;
    const auto after = [](double s) { return Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(s)); };
    for (Heard& h : heard_)
      if (speaks_for_me(h) && h.request == MPI_REQUEST_NULL)
        MPI_Irecv(&h.word, 1, MPI_UINT64_T, h.from, 0, comm_, &h.request);
    Clock::time_point end = after(seconds);
    for (bool ended = false; Clock::now() < end; std::this_thread::sleep_for(Seconds(kPoll))) {
      for (MPI_Request& s : sends_) progress(s);
      bool all = rank_ != 0;
      for (Heard& h : heard_) {
        if (!speaks_for_me(h)) continue;
        h.done = h.done || progress(h.request);
        if (h.done && h.word == word) return true;
        all = all && h.done;
      }
      if (all) return false;
      if (heard_[0].done && !std::exchange(ended, true)) end = std::min(end, after(kShort));
    }
    return false;
  }

 private:
  using Seconds = std::chrono::duration<double>;
  static constexpr double kPoll = 0.005;
  static constexpr double kShort = 0.3;  // rank 0 has failed of something else, and soon ends the job
  struct Heard {
    int from;
    uint64_t word = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    bool done = false;
  };
  bool speaks_for_me(const Heard& h) const { return h.from != rank_ && (&h == heard_.data() || h.from != 0); }
  static bool progress(MPI_Request& request) {
    int done = 0;
    return request != MPI_REQUEST_NULL && MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
  }

  MPI_Comm comm_;
  int rank_, size_;
  std::vector<int> machine_;
  uint64_t word_ = 0;
  std::list<MPI_Request> sends_;
  std::array<Heard, 2> heard_;  // rank 0, the first of this machine
};

}  // namespace octet
