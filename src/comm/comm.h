#pragma once
// Collectives between the devices of a run, in stream order. Virtual: chosen at run time, called a few hundred times a
// step. Every rank of the group issues the same calls in the same order.
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "host/host.h"

namespace octet::BACKEND {

enum class Reduce { sum, max };

struct Piece {  // rows of a tensor that go to a rank of the group, or come from it
  int rank;
  int64_t first, rows;
};

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void begin_group() {}  // collectives until end_group() are issued as one
  virtual void end_group() {}
  virtual void all_gather(Stream&, Tensor full, Tensor mine) = 0;      // full = concat of mine; mine may be its slice
  virtual void reduce_scatter(Stream&, Tensor mine, Tensor full) = 0;  // mine = own slice of the sum; likewise
  virtual void all_reduce(Stream&, Tensor, Reduce) = 0;                // in place; f64, f32, bf16, u32
  virtual void broadcast(Stream&, Tensor, int root) = 0;
  // Rows of `from` into rows of the others' and one's own `to`: between two ranks the pieces that one sends are those
  // that the other receives, in order and size.
  virtual void all_to_all(Stream&, Tensor to, const std::vector<Piece>& receives, Tensor from,
                          const std::vector<Piece>& sends) = 0;
  virtual void register_memory(void*, size_t) {}  // collectives may work in it directly; until the Comm ends
  // For a thread that watches the one that issues:
  virtual void poll() {}                          // throws when a collective under way has failed
  virtual std::string under_way() { return ""; }  // the first one that has not ended: "all-gather of 25.2 MB"; "": none
};

// All ranks of `host` (for a group of ranks: host.split()). The host outlives it.
std::unique_ptr<Comm> make_comm(Device&, Host& host);

}  // namespace octet::BACKEND
