// Collectives between GPUs by NCCL, on whatever stream the caller gives: weights and gradients take one of high
// priority beside the products, what the next kernel waits for takes the compute stream.
#include <nccl.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/gpu/issued.h"
#include "comm/gpu/single.h"
#include "device/gpu.h"

namespace octet::BACKEND {
namespace {

void check(ncclResult_t result, const char* call, ncclComm_t comm) {
  if (result == ncclSuccess) [[likely]]
    return;
  const char* last = ncclGetLastError(comm);
  throw SystemError(
      concat("NCCL: ", call, ": ", ncclGetErrorString(result), last && *last ? ": " : "", last ? last : ""));
}
#define NCCL_CHECK(call, comm) check(call, #call, comm)

ncclDataType_t summable(DType t) {
  switch (t) {
    case DType::f64:
      return ncclFloat64;
    case DType::f32:
      return ncclFloat32;
    case DType::f16:
      return ncclFloat16;
    case DType::bf16:
      return ncclBfloat16;
    case DType::u32:
      return ncclUint32;
    default:
      CHECK(false, "ranks do not reduce ", name_of(t));
  }
  return ncclFloat32;
}

class NcclComm final : public Comm {
 public:
  NcclComm(Device& device, Host& host) : rank_(host.rank()), size_(host.size()), issued_(device.impl().index) {
    CUDA_CHECK(cudaSetDevice(device.impl().index));
    ncclUniqueId id{};
    if (rank_ == 0) NCCL_CHECK(ncclGetUniqueId(&id), nullptr);
    std::vector<ncclUniqueId> ids(static_cast<size_t>(size_));
    host.all_gather(ids.data(), &id, sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    if (const int most = device.options().collective_ctas) config.maxCTAs = most;
    NCCL_CHECK(ncclCommInitRankConfig(&comm_, size_, ids[0], rank_, &config), nullptr);
    watch_ = host.when_lost([this] { abort(); });
  }
  ~NcclComm() override {
    watch_.reset();
    if (std::uncaught_exceptions() > 0) abort();  // the others may never come to what is under way
    if (lost_) return;
    for (void* handle : registered_) ncclCommDeregister(comm_, handle);
    ncclCommDestroy(comm_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void begin_group() override {
    NCCL_CHECK(ncclGroupStart(), comm());
    grouped_ = true;
  }
  void end_group() override {
    grouped_ = false;
    const ncclResult_t result = ncclGroupEnd();
    group_time_.reset();
    NCCL_CHECK(result, comm());
    if (group_) issued_.add(group_->stream, group_->kernel, group_->bytes);
    group_.reset();
  }
  // What only moves is sent as bytes: NCCL's types need not know ours.
  void all_gather(Stream& s, Tensor full, Tensor mine) override {
    CHECK(full.numel() == mine.numel() * size_, "all-gather of ", mine.shape, " into ", full.shape);
    issue(s, Kernel::all_gather, full, [&](ncclComm_t c, cudaStream_t on) {
      NCCL_CHECK(ncclAllGather(mine.data, full.data, mine.bytes(), ncclUint8, c, on), c);
    });
  }
  void reduce_scatter(Stream& s, Tensor mine, Tensor full) override {
    CHECK(full.numel() == mine.numel() * size_, "reduce-scatter of ", full.shape, " into ", mine.shape);
    issue(s, Kernel::reduce_scatter, full, [&](ncclComm_t c, cudaStream_t on) {
      NCCL_CHECK(ncclReduceScatter(full.data, mine.data, size_t(mine.numel()), summable(mine.dtype), ncclSum, c, on),
                 c);
    });
  }
  void all_reduce(Stream& s, Tensor t, Reduce op) override {
    const ncclRedOp_t nccl_op = op == Reduce::sum ? ncclSum : ncclMax;
    issue(s, Kernel::all_reduce, t, [&](ncclComm_t c, cudaStream_t on) {
      NCCL_CHECK(ncclAllReduce(t.data, t.data, size_t(t.numel()), summable(t.dtype), nccl_op, c, on), c);
    });
  }
  void broadcast(Stream& s, Tensor t, int root) override {
    issue(s, Kernel::all_gather, t, [&](ncclComm_t c, cudaStream_t on) {
      NCCL_CHECK(ncclBroadcast(t.data, t.data, t.bytes(), ncclUint8, root, c, on), c);
    });
  }
  void all_to_all(Stream& s, Tensor to, const std::vector<Piece>& receives, Tensor from,
                  const std::vector<Piece>& sends) override {
    issue(s, Kernel::all_to_all, from, [&](ncclComm_t c, cudaStream_t on) {
      NCCL_CHECK(ncclGroupStart(), c);
      for (const Piece& p : sends) {
        const Tensor rows = from.row_range(p.first, p.rows);
        NCCL_CHECK(ncclSend(rows.data, rows.bytes(), ncclUint8, p.rank, c, on), c);
      }
      for (const Piece& p : receives) {
        const Tensor rows = to.row_range(p.first, p.rows);
        NCCL_CHECK(ncclRecv(rows.data, rows.bytes(), ncclUint8, p.rank, c, on), c);
      }
      NCCL_CHECK(ncclGroupEnd(), c);
    });
  }
  void register_memory(void* p, size_t bytes) override {
    registered_.push_back(nullptr);
    NCCL_CHECK(ncclCommRegister(comm(), p, bytes, &registered_.back()), comm_);
  }
  void poll() override {
    const std::lock_guard lock(ending_);
    if (lost_) return;  // whoever failed says why
    ncclResult_t state = ncclSuccess;
    NCCL_CHECK(ncclCommGetAsyncError(comm_, &state), comm_);
    check(state, "a collective under way", comm_);
  }
  std::string under_way() override { return issued_.first_not_ended(); }

 private:
  ncclComm_t comm() const {
    if (lost_) throw SystemError("another rank failed");
    return comm_;
  }
  // Ends what waits on the device; NCCL lets any thread do it.
  void abort() {
    const std::lock_guard lock(ending_);
    if (!lost_.exchange(true)) ncclCommAbort(comm_);
  }
  // A group runs as one: its time goes to the class of its first collective. What computes waits for what it issues.
  template <class F>
  void issue(Stream& s, Kernel kernel, Tensor whole, F&& call) {
    const Kernel timed = s.priority() == Stream::Priority::high ? kernel : Kernel::wait;
    std::optional<Timed> own;
    if (grouped_) {
      if (!group_) group_.emplace(s, kernel, 0);
      if (!group_time_) group_time_.emplace(s, timed);
      group_->bytes += whole.bytes();
    } else {
      own.emplace(s, timed);
    }
    call(comm(), raw(s));
    if (!grouped_) issued_.add(s, kernel, whole.bytes());
  }

  struct OpenGroup {
    OpenGroup(Stream& s, Kernel k, size_t n) : stream(s), kernel(k), bytes(n) {}
    Stream& stream;
    Kernel kernel;
    size_t bytes;
  };
  int rank_, size_;
  ncclComm_t comm_ = nullptr;
  std::mutex ending_;
  std::atomic<bool> lost_ = false;
  bool grouped_ = false;
  std::optional<OpenGroup> group_;
  std::optional<Timed> group_time_;
  Issued issued_;
  std::vector<void*> registered_;  // handles
  std::shared_ptr<void> watch_;
};

}  // namespace

std::unique_ptr<Comm> make_comm(Device& device, Host& host) {
  if (host.size() == 1) return make_single_comm();
  return std::make_unique<NcclComm>(device, host);
}

}  // namespace octet::BACKEND
