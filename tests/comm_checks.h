#pragma once
// What every Comm of host memory must do, for every dtype and length: exactly, in the order of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "comm/comm.h"

namespace octet::BACKEND {

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

// To rank t go 1 + (rank + t) % 3 rows in one piece and, unless t is the sender, another of one row; some ranks
// exchange nothing with some others.
inline void check_exchange(Comm& comm, Stream& s) {
  const int R = comm.size(), rank = comm.rank();
  constexpr int64_t kColumns = 5;
  const auto sizes = [](int from, int to) {
    if (from == to + 1) return std::vector<int64_t>{};
    std::vector<int64_t> rows{1 + (from + to) % 3};
    if (from != to) rows.push_back(1);
    return rows;
  };
  auto mine = values<float>(rank, 4 * R * kColumns);
  std::vector<float> got(static_cast<size_t>(8 * R * kColumns), -1.f), want = got;
  std::vector<Piece> sends, receives;
  const auto row_of = [](int to, size_t piece) { return 4 * to + (piece ? 3 : 0); };
  for (int to = 0; to < R; ++to)
    for (size_t i = 0; i < sizes(rank, to).size(); ++i) sends.push_back({to, row_of(to, i), sizes(rank, to)[i]});
  for (int from = R - 1; from >= 0; --from)
    for (size_t i = 0; i < sizes(from, rank).size(); ++i) {
      const int64_t first = 8 * from + 4 * int64_t(i), rows = sizes(from, rank)[i];
      receives.push_back({from, first, rows});
      for (int64_t j = 0; j < rows * kColumns; ++j)
        want[size_t(first * kColumns + j)] = value<float>(from, row_of(rank, i) * kColumns + j);
    }
  const auto matrix = [&](std::vector<float>& v) {
    return view(v).as(DType::f32, {int64_t(v.size()) / kColumns, kColumns});
  };
  comm.all_to_all(s, matrix(got), receives, matrix(mine), sends);
  ASSERT_EQ(got, want);
  comm.all_to_all(s, matrix(got), {}, matrix(mine), {});  // nobody has anything
  ASSERT_EQ(got, want);
}

inline void check_all(Host& host) {
  Device device({});
  Stream s(device);
  const auto comm = make_comm(device, host);
  ASSERT_EQ(comm->size(), host.size());
  ASSERT_EQ(comm->rank(), host.rank());
  check_exchange(*comm, s);
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

}  // namespace octet::BACKEND
