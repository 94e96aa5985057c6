// The ranks are threads of one process: they read one another's tensors between two barriers. Each rank computes its
// share of a reduction only.
#include <algorithm>
#include <cstring>

#include "comm/cpu/reduce.h"

namespace octet::BACKEND {
namespace {

class SharedMemoryComm final : public Comm {
 public:
  explicit SharedMemoryComm(Host& host) : host_(host), all_(size_t(host.size())) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  void all_gather(Stream&, Tensor full, Tensor mine) override {
    CHECK(full.numel() == mine.numel() * size(), "all-gather of ", mine.shape, " into ", full.shape);
    exchange(mine);
    for (int r = 0; r < size(); ++r) copy_from(r, full.part(r * mine.numel(), mine.shape), 0);
    host_.barrier();  // nobody may write what another still reads
  }
  void reduce_scatter(Stream&, Tensor mine, Tensor full) override {
    CHECK(full.numel() == mine.numel() * size(), "reduce-scatter of ", full.shape, " into ", mine.shape);
    exchange(full);
    reduce_in_order(mine, parts(rank() * mine.numel(), mine.numel()), Reduce::sum);
    host_.barrier();
  }
  // Rank r reduces the r-th slice in place, where only it reads and writes; then everybody copies the others' slices.
  void all_reduce(Stream&, Tensor t, Reduce op) override {
    exchange(t);
    const int64_t slice = (t.numel() + size() - 1) / size();
    const auto part = [&](int r) {
      const int64_t first = std::min(r * slice, t.numel()), last = std::min(first + slice, t.numel());
      return t.part(first, {last - first});
    };
    const auto first_of = [&](int r) { return std::min(r * slice, t.numel()); };
    reduce_in_order(part(rank()), parts(first_of(rank()), part(rank()).numel()), op);
    host_.barrier();
    for (int r = 0; r < size(); ++r) copy_from(r, part(r), first_of(r));
    host_.barrier();
  }
  void broadcast(Stream&, Tensor t, int root) override {
    CHECK(root >= 0 && root < size(), "no rank ", root, " among ", size());
    exchange(t);
    copy_from(root, t, 0);
    host_.barrier();
  }
  void all_to_all(Stream&, Tensor to, const std::vector<Piece>& receives, Tensor from,
                  const std::vector<Piece>& sends) override {
    host_.exchange(parts_of(to, receives), parts_of(from, sends));
  }

 private:
  void exchange(Tensor mine) {
    host_.all_gather(all_.data(), &mine, sizeof mine);
    for (const Tensor& t : all_)
      CHECK(t.dtype == mine.dtype && t.numel() == mine.numel(), "ranks disagree about a collective: ", mine.shape,
            " and ", t.shape);
  }
  std::vector<Tensor> parts(int64_t first, int64_t count) const {
    std::vector<Tensor> slices;
    for (const Tensor& t : all_) slices.push_back(t.part(first, {count}));
    return slices;
  }
  void copy_from(int r, Tensor to, int64_t first) const {
    const void* from = all_[size_t(r)].part(first, to.shape).data;
    if (from != to.data && to.bytes()) std::memcpy(to.data, from, to.bytes());
  }

  Host& host_;
  std::vector<Tensor> all_;
};

}  // namespace

std::unique_ptr<Comm> make_shared_memory_comm(Host& host) { return std::make_unique<SharedMemoryComm>(host); }

}  // namespace octet::BACKEND
