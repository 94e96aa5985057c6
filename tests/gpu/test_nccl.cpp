// The gpu engine's collectives on two cards: sums of two terms are exact, copies are copies, groups run as one, and a
// rank that fails ends the other, which waits for it on the card.
#define BACKEND gpu
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "base/rng.h"
#include "comm/comm.h"
#include "device/gpu.h"
#include "ranks.h"

namespace octet::gpu {
namespace {

struct Nccl : testing::Test {
  void SetUp() override {
    if (device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  }
};
struct Rank {
  explicit Rank(Host& host, int ctas = 0, size_t bytes = size_t{64} << 20)
      : device({.index = host.local_rank(), .collective_ctas = ctas}),
        s(device, Stream::Priority::high),
        arena(s, "test", bytes),
        comm(make_comm(device, host)) {}
  template <class T>
  Tensor to_device(const std::vector<T>& v) {
    const Tensor t = arena.alloc(dtype_of<T>, {int64_t(v.size())});
    copy_to_device(s, t.data, v.data(), t.bytes());
    s.synchronize();
    return t;
  }
  template <class T>
  std::vector<T> to_host(Tensor t) {
    std::vector<T> v(size_t(t.numel()));
    copy_to_host(s, v.data(), t.data, t.bytes());
    s.synchronize();
    return v;
  }
  Device device;
  Stream s;
  Arena arena;
  std::unique_ptr<Comm> comm;
};
template <class T>
std::vector<T> values(int rank, int64_t n) {
  std::vector<T> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<T, uint32_t>) v[size_t(i)] = uint32_t(random_bits(7, uint64_t(rank), uint64_t(i)));
    else v[size_t(i)] = T(float(normal(7, uint64_t(rank), uint64_t(i))));
  }
  return v;
}
template <class T>
T sum_at(int64_t n, int64_t i) {  // a sum of two terms has one order; bf16 is rounded once
  using A = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  return T(A(values<T>(0, n)[size_t(i)]) + A(values<T>(1, n)[size_t(i)]));
}

template <class T>
void check_sums(Rank& r) {
  const int64_t n = 4096;
  const int rank = r.comm->rank();
  const Tensor all = r.to_device(values<T>(rank, n)), scattered = r.to_device(values<T>(rank, n));
  r.comm->begin_group();
  r.comm->all_reduce(r.s, all, Reduce::sum);
  r.comm->reduce_scatter(r.s, scattered.part(rank * n / 2, {n / 2}), scattered);
  r.comm->end_group();
  const auto a = r.to_host<T>(all), b = r.to_host<T>(scattered.part(rank * n / 2, {n / 2}));
  for (int64_t i = 0; i < n; i += 97) ASSERT_EQ(double(a[size_t(i)]), double(sum_at<T>(n, i))) << name_of(dtype_of<T>);
  for (int64_t i = 0; i < n / 2; i += 97)
    ASSERT_EQ(double(b[size_t(i)]), double(sum_at<T>(n, rank * n / 2 + i))) << name_of(dtype_of<T>);
}

TEST_F(Nccl, SumsAreExact) {
  run_ranks(2, [](Host& host) {
    Rank r(host);
    check_sums<float>(r);
    check_sums<double>(r);
    check_sums<bf16>(r);
    check_sums<uint32_t>(r);
  });
}

TEST_F(Nccl, MaximaAndCopies) {
  run_ranks(2, [](Host& host) {
    Rank r(host);
    const int64_t n = 1000;
    const Tensor m = r.to_device(values<uint32_t>(host.rank(), n));
    r.comm->all_reduce(r.s, m, Reduce::max);
    const auto maxima = r.to_host<uint32_t>(m), x = values<uint32_t>(0, n), y = values<uint32_t>(1, n);
    for (size_t i = 0; i < size_t(n); ++i) ASSERT_EQ(maxima[i], std::max(x[i], y[i]));

    const Tensor full = r.arena.alloc(DType::f32, {2 * n}), mine = full.part(host.rank() * n, {n});
    const auto own = values<float>(host.rank(), n);
    copy_to_device(r.s, mine.data, own.data(), mine.bytes());
    r.comm->all_gather(r.s, full, mine);
    const auto gathered = r.to_host<float>(full);
    for (int64_t i = 0; i < 2 * n; i += 7) ASSERT_EQ(gathered[size_t(i)], values<float>(int(i / n), n)[size_t(i % n)]);

    r.comm->broadcast(r.s, mine, 1);
    ASSERT_EQ(r.to_host<float>(mine), values<float>(1, n));
    r.comm->poll();
  });
}

// Rows in two pieces to the other rank, in one to oneself; then nothing at all.
TEST_F(Nccl, RowsGoWhereTheyAreSent) {
  run_ranks(2, [](Host& host) {
    Rank r(host);
    constexpr int64_t kColumns = 24;
    const int me = host.rank(), other = 1 - me;
    const Tensor from = r.to_device(values<float>(me, 10 * kColumns)).as(DType::f32, {10, kColumns});
    const Tensor to = r.to_device(std::vector<float>(10 * kColumns, -1)).as(DType::f32, {10, kColumns});
    r.comm->all_to_all(r.s, to, {{other, 0, 3}, {me, 3, 2}, {other, 6, 1}}, from,
                       {{0, 1, me == 0 ? 2 : 3}, {1, 4, me == 1 ? 2 : 3}, {other, 9, 1}});
    auto want = std::vector<float>(10 * kColumns, -1);
    const auto put = [&](int64_t at, int rank, int64_t first, int64_t rows) {
      const auto v = values<float>(rank, 10 * kColumns);
      std::copy_n(v.begin() + first * kColumns, rows * kColumns, want.begin() + at * kColumns);
    };
    put(0, other, me == 0 ? 1 : 4, 3);
    put(3, me, me == 0 ? 1 : 4, 2);
    put(6, other, 9, 1);
    ASSERT_EQ(r.to_host<float>(to), want);
    r.comm->all_to_all(r.s, to, {}, from, {});
    ASSERT_EQ(r.to_host<float>(to), want);
  });
}

TEST_F(Nccl, FailingRankEndsTheOther) {
  const auto body = [](Host& host) {
    Rank r(host);
    const Tensor t = r.to_device(values<float>(host.rank(), 1000));
    r.comm->all_reduce(r.s, t, Reduce::sum);
    r.s.synchronize();
    if (host.rank() == 1) bad_input("rank 1 met something");
    r.comm->all_reduce(r.s, t, Reduce::sum);  // rank 1 never comes
    r.s.synchronize();
    host.barrier();
  };
  EXPECT_THROW(run_threads(2, body), InputError);
}

// What a watchdog asks from its own thread.
TEST_F(Nccl, TheFirstCollectiveThatHasNotEndedIsNamed) {
  run_ranks(2, [](Host& host) {
    Rank r(host);
    const Tensor t = r.to_device(values<float>(host.rank(), 1024)), full = r.arena.alloc(DType::f32, {2048});
    r.comm->all_reduce(r.s, t, Reduce::sum);
    r.s.synchronize();
    EXPECT_EQ(r.comm->under_way(), "");
    const auto both = [&] {
      r.comm->begin_group();
      r.comm->all_gather(r.s, full, t);
      r.comm->all_gather(r.s, full, t);
      r.comm->end_group();
      r.comm->all_reduce(r.s, t, Reduce::sum);
    };
    if (host.rank() == 0) {
      both();
      std::string said;
      std::thread([&] { said = r.comm->under_way(); }).join();
      EXPECT_EQ(said, "all-gather of 16.0 KiB (number 2)");  // rank 1 has not come
      host.barrier();
    } else {
      host.barrier();
      both();
    }
    r.s.synchronize();
    EXPECT_EQ(r.comm->under_way(), "");
    CUDA_CHECK(cudaGetLastError());  // asking leaves no error behind
  });
}

// parallel.nccl_ctas: one thread block moves far less than NCCL's own choice of them.
TEST_F(Nccl, TheNumberOfThreadBlocksIsBounded) {
  const auto seconds = [](int ctas) {
    double best = 1e9;
    run_ranks(2, [&](Host& host) {
      Rank r(host, ctas, size_t{300} << 20);
      const Tensor t = r.arena.alloc(DType::f32, {int64_t{64} << 20});
      fill_zero(r.s, t);
      for (int i = 0; i < 4; ++i) {
        Event begin(r.device), end(r.device);
        begin.record(r.s);
        r.comm->all_reduce(r.s, t, Reduce::sum);
        end.record(r.s);
        r.s.synchronize();
        if (host.rank() == 0) best = std::min(best, end.seconds_since(begin));
      }
    });
    return best;
  };
  const double one = seconds(1), free = seconds(0);
  std::printf("all-reduce of 256 MiB: %.2f ms by one thread block, %.2f ms by NCCL's choice\n", 1e3 * one, 1e3 * free);
  EXPECT_GT(one, 2 * free);
}

TEST(Single, IsItsOwnGroup) {
  if (!device_available()) GTEST_SKIP() << "needs a GPU";
  LoneHost host;
  Rank r(host);
  const Tensor x = r.to_device(values<float>(0, 100)), y = r.arena.alloc(DType::f32, {100});
  r.comm->all_reduce(r.s, x, Reduce::sum);
  r.comm->all_gather(r.s, y, x);
  EXPECT_EQ(r.to_host<float>(y), values<float>(0, 100));
}

}  // namespace
}  // namespace octet::gpu
