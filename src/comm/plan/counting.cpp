// Collectives as counts: the bytes that one rank sends when they run in a ring.
#include "comm/comm.h"
#include "device/plan.h"

namespace octet::BACKEND {
namespace {

class CountingComm final : public Comm {
 public:
  explicit CountingComm(Host& host) : host_(host) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  void all_gather(Stream& s, Tensor full, Tensor mine) override {
    CHECK(full.numel() == mine.numel() * size(), "all-gather of ", mine.shape, " into ", full.shape);
    count(s, Kernel::all_gather, 0, double(full.bytes() - mine.bytes()));
  }
  void reduce_scatter(Stream& s, Tensor mine, Tensor full) override {
    CHECK(full.numel() == mine.numel() * size(), "reduce-scatter of ", full.shape, " into ", mine.shape);
    count(s, Kernel::reduce_scatter, 0, double(full.bytes() - mine.bytes()));
  }
  void all_reduce(Stream& s, Tensor t, Reduce) override {
    count(s, Kernel::all_reduce, 0, 2 * double(t.bytes()) * double(size() - 1) / double(size()));
  }
  void broadcast(Stream& s, Tensor t, int) override {
    count(s, Kernel::all_gather, 0, size() > 1 ? double(t.bytes()) : 0);
  }
  void all_to_all(Stream& s, Tensor, const std::vector<Piece>&, Tensor from, const std::vector<Piece>& sends) override {
    int64_t rows = 0;
    for (const Piece& p : sends)
      if (p.rank != rank()) rows += p.rows;
    count(s, Kernel::all_to_all, 0, double(from.row_range(0, rows).bytes()));
  }

 private:
  Host& host_;
};

}  // namespace

std::unique_ptr<Comm> make_comm(Device&, Host& host) { return std::make_unique<CountingComm>(host); }

}  // namespace octet::BACKEND
