// The cpu engine's collectives: each rank gets exactly the sum in the order of ranks, by shared memory and by messages,
// also when mpirun starts this program.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "../ranks.h"
#include "base/rng.h"
#include "comm/cpu/reduce.h"

namespace octet::BACKEND {
namespace {

// A thread that must speak in messages, as a process does.
class Talkative final : public Host {
 public:
  explicit Talkative(Host& host) : host_(host) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  int local_rank() const override { return host_.local_rank(); }
  int local_size() const override { return host_.local_size(); }
  bool shares_memory() const override { return false; }
  void all_gather(void* all, const void* mine, size_t n) override { host_.all_gather(all, mine, n); }
  void all_to_all(void* all, const void* mine, size_t n) override { host_.all_to_all(all, mine, n); }
  void broadcast(void* data, size_t n, int root) override { host_.broadcast(data, n, root); }
  void barrier() override { host_.barrier(); }
  std::unique_ptr<Host> split(int colour, int size) override { return host_.split(colour, size); }
  std::shared_ptr<void> when_lost(std::function<void()> f) override { return host_.when_lost(std::move(f)); }
  void abort(int code) noexcept override { host_.abort(code); }

 private:
  Host& host_;
};

template <class T>
T value(int rank, int64_t i) {  // any rank can say what another one holds
  if constexpr (std::is_same_v<T, uint32_t>) return uint32_t(random_bits(7, uint64_t(rank), uint64_t(i)));
  else return T(float(normal(7, uint64_t(rank), uint64_t(i))));
}
template <class T>
std::vector<T> values(int rank, int64_t n) {
  std::vector<T> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) v[size_t(i)] = value<T>(rank, i);
  return v;
}
template <class T>
T reduced(int ranks, int64_t i, Reduce op) {  // the definition; a bf16 sum is one of fp32 values, rounded once
  using A = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  A total = A(value<T>(0, i));
  for (int r = 1; r < ranks; ++r) {
    const A v = A(value<T>(r, i));
    total = op == Reduce::sum ? total + v : std::max(total, v);
  }
  return T(total);
}
template <class T>
Tensor view(std::vector<T>& v) {
  return {v.data(), dtype_of<T>, {int64_t(v.size())}};
}
template <class T>
bool same(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <class T>
void check_reductions(Comm& comm, Stream& s, int64_t n) {
  const int R = comm.size(), rank = comm.rank();
  for (Reduce op : {Reduce::sum, Reduce::max}) {
    auto x = values<T>(rank, n);
    comm.all_reduce(s, view(x), op);
    for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(same(x[size_t(i)], reduced<T>(R, i, op))) << "all_reduce " << i;
  }
  for (bool in_place : {false, true}) {
    auto full = values<T>(rank, n * R);
    std::vector<T> own(static_cast<size_t>(n));
    const Tensor mine = in_place ? view(full).part(rank * n, {n}) : view(own);
    comm.reduce_scatter(s, mine, view(full));
    for (int64_t i = 0; i < n; ++i)
      ASSERT_TRUE(same(mine.ptr<T>()[i], reduced<T>(R, rank * n + i, Reduce::sum))) << "reduce_scatter " << i;
  }
}

template <class T>
void check_copies(Comm& comm, Stream& s, int64_t n) {
  const int R = comm.size(), rank = comm.rank();
  for (bool in_place : {false, true}) {
    std::vector<T> full(static_cast<size_t>(n * R));
    auto own = values<T>(rank, n);
    Tensor mine = view(own);
    if (in_place) {
      mine = view(full).part(rank * n, {n});
      std::memcpy(mine.data, own.data(), mine.bytes());
    }
    comm.all_gather(s, view(full), mine);
    for (int64_t i = 0; i < n * R; ++i)
      ASSERT_TRUE(same(full[size_t(i)], value<T>(int(i / n), i % n))) << "gather " << i;
  }
  for (int root = 0; root < R; ++root) {
    auto x = values<T>(rank, n);
    comm.broadcast(s, view(x), root);
    for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(same(x[size_t(i)], value<T>(root, i))) << "broadcast " << i;
  }
}

void check_all(Host& host) {
  Device device({});
  Stream s(device);
  const auto comm = make_comm(device, host);
  ASSERT_EQ(comm->size(), host.size());
  ASSERT_EQ(comm->rank(), host.rank());
  for (int64_t n : {1, 3, 64, 1024, 5001}) {  // fewer elements than ranks, and more than one block of the sum
    check_reductions<float>(*comm, s, n);
    check_reductions<double>(*comm, s, n);
    check_reductions<bf16>(*comm, s, n);
    check_reductions<uint32_t>(*comm, s, n);
    check_copies<float>(*comm, s, n);
    check_copies<bf16>(*comm, s, n);
    check_copies<e4m3>(*comm, s, n);
  }
}

TEST(Comm, SharedMemoryIsExact) {
  for (int ranks : {1, 2, 3, 4}) run_ranks(ranks, check_all);
}

TEST(Comm, MessagesAreExact) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](Host& host) {
      Talkative talkative(host);
      check_all(talkative);
    });
}

TEST(Comm, AloneIsExact) {
  LoneHost host;
  check_all(host);
}

TEST(Comm, GroupsAreIndependent) {
  run_ranks(4, [](Host& host) {
    const auto group = host.split(host.rank() % 2, 2);
    Device device({});
    Stream s(device);
    const auto comm = make_comm(device, *group);
    for (int round = 0; round < 50; ++round) {
      std::vector<float> x{float(host.rank() + 10 * round)};
      comm->all_reduce(s, view(x), Reduce::sum);
      ASSERT_EQ(x[0], float(2 * (host.rank() % 2) + 2 + 20 * round));
    }
  });
}

TEST(Comm, RanksThatDisagreeAreStopped) {
  const auto disagree = [](Host& host) {
    Device device({});
    Stream s(device);
    std::vector<float> x(size_t(host.rank() + 1));
    make_comm(device, host)->all_reduce(s, view(x), Reduce::sum);
  };
  EXPECT_THROW(run_threads(2, disagree), Error);
}

TEST(Comm, FailingRankEndsTheOthers) {
  const auto fail_on_1 = [](Host& host) {
    Device device({});
    Stream s(device);
    const auto comm = make_comm(device, host);
    std::vector<float> x(100);
    for (int step = 0;; ++step) {
      if (step == 3 && host.rank() == 1) bad_input("rank 1 met something");
      comm->all_reduce(s, view(x), Reduce::sum);
    }
  };
  try {
    run_threads(3, fail_on_1);
    FAIL() << "nothing was thrown";
  } catch (const InputError& e) { EXPECT_STREQ(e.what(), "rank 1 met something"); }
}

// Started by mpirun -np N, the ranks of that job; otherwise one.
TEST(CommMpi, MessagesAreExact) {
  std::unique_ptr<Host> host;
  try {
    host = mpi_host(nullptr, nullptr);
  } catch (const InputError&) { GTEST_SKIP() << "built without MPI"; }
  if (!host) GTEST_SKIP() << "not started by mpirun";
  check_all(*host);
  const auto group = host->split(host->rank() / 2, std::min(2, host->size() - host->rank() / 2 * 2));
  check_all(*group);
  EXPECT_LE(host->local_rank(), host->local_size());
}

}  // namespace
}  // namespace octet::BACKEND
