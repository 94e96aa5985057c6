#pragma once
// Heartbeats: signs of life between the processes of a run, beside MPI: packets of UDP, from a thread of their own.
// They decide nothing; they tell which rank the others wait for. Where packets do not get through, nobody is named.
#include <cstdint>
#include <string>
#include <vector>

#include "host/host.h"

namespace octet {

class Heartbeats {
 public:
  explicit Heartbeats(Host&);  // of every rank at once
  ~Heartbeats();
  Heartbeats(const Heartbeats&) = delete;
  void beat(double now);  // tells the others, once a second at most, and hears them; seconds of any clock
  std::string missing(double now) const;  // "rank 1 has not been heard of for 26 s"; "" if all were, lately

 private:
  struct Peer {
    uint32_t address = 0;  // IPv4; 0: not to be found, or this rank
    uint16_t port = 0;
    double heard = -1;  // -1: never
  };
  int rank_, socket_ = -1;
  uint64_t run_ = 0;                   // marks the packets of this run
  double sent_ = -1e9, interval_ = 1;  // seconds between beats: more where many ranks would drown one another
  std::vector<Peer> peers_;
};

}  // namespace octet
