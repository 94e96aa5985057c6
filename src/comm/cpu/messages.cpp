// The ranks are processes: reductions send each rank its share of everybody's tensor, and it adds them in the order of
// ranks. MPI's own reductions may add in any order.
#include <atomic>
#include <cstring>

#include "base/progress.h"
#include "comm/cpu/reduce.h"

namespace octet::BACKEND {
namespace {

class MessageComm final : public Comm {
 public:
  explicit MessageComm(Host& host) : host_(host) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  void all_gather(Stream&, Tensor full, Tensor mine) override {
    CHECK(full.numel() == mine.numel() * size(), "all-gather of ", mine.shape, " into ", full.shape);
    const Underway here(under_way_, "all-gather", full);
    host_.all_gather(full.data, mine.data, mine.bytes());
  }
  void reduce_scatter(Stream&, Tensor mine, Tensor full) override {
    CHECK(full.numel() == mine.numel() * size(), "reduce-scatter of ", full.shape, " into ", mine.shape);
    const Underway here(under_way_, "reduce-scatter", full);
    reduce_received(mine, full.data, Reduce::sum);
  }
  void all_reduce(Stream&, Tensor t, Reduce op) override {
    const Underway here(under_way_, "all-reduce", t);
    const int64_t slice = (t.numel() + size() - 1) / size();
    padded_.resize(size_t(slice * size()) * size_of(t.dtype));
    if (t.bytes()) std::memcpy(padded_.data(), t.data, t.bytes());
    std::memset(padded_.data() + t.bytes(), 0, padded_.size() - t.bytes());  // reduced by somebody, read by nobody
    const Tensor full{padded_.data(), t.dtype, {slice * size()}}, mine = full.part(rank() * slice, {slice});
    reduce_received(mine, full.data, op);
    host_.all_gather(full.data, mine.data, mine.bytes());
    if (t.bytes()) std::memcpy(t.data, full.data, t.bytes());
  }
  void broadcast(Stream&, Tensor t, int root) override {
    const Underway here(under_way_, "broadcast", t);
    host_.broadcast(t.data, t.bytes(), root);
  }
  void all_to_all(Stream&, Tensor to, const std::vector<Piece>& receives, Tensor from,
                  const std::vector<Piece>& sends) override {
    const Underway here(under_way_, "all-to-all", from);
    host_.exchange(parts_of(to, receives), parts_of(from, sends));
  }
  std::string under_way() override {
    const char* name = under_way_.name;
    return name ? concat(name, " of ", human_bytes(double(under_way_.bytes))) : "";
  }

 private:
  struct Call {  // another thread may ask
    std::atomic<const char*> name{nullptr};
    std::atomic<size_t> bytes{0};
  };
  struct Underway {
    Underway(Call& c, const char* name, Tensor t) : call(c) {
      call.bytes = t.bytes();
      call.name = name;
    }
    ~Underway() { call.name = nullptr; }
    Underway(const Underway&) = delete;
    Call& call;
  };
  void reduce_received(Tensor mine, const void* full, Reduce op) {
    received_.resize(mine.bytes() * size_t(size()));
    host_.all_to_all(received_.data(), full, mine.bytes());
    std::vector<Tensor> parts;
    for (int r = 0; r < size(); ++r)
      parts.push_back(Tensor{received_.data(), mine.dtype, {}}.part(r * mine.numel(), {mine.numel()}));
    reduce_in_order(mine, parts, op);
  }

  Host& host_;
  std::vector<char> padded_, received_;
  Call under_way_;
};

}  // namespace

std::unique_ptr<Comm> make_message_comm(Host& host) { return std::make_unique<MessageComm>(host); }

}  // namespace octet::BACKEND
