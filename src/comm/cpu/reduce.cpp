// Sums and maxima over ranks, and which kind of Comm a Host asks for.
#include "comm/cpu/reduce.h"

#include <algorithm>
#include <array>

namespace octet::BACKEND {
namespace {

template <class T>
struct SumIn {
  using type = T;
};
template <>
struct SumIn<bf16> {
  using type = float;
};

template <class T>
void reduce_block(T* out, int64_t first, int64_t count, const std::vector<Tensor>& parts, Reduce op) {
  using A = typename SumIn<T>::type;
  std::array<A, 1024> total;
  const T* x = parts[0].ptr<T>() + first;
  for (int64_t i = 0; i < count; ++i) total[size_t(i)] = A(x[i]);
  for (size_t r = 1; r < parts.size(); ++r) {
    x = parts[r].ptr<T>() + first;
    if (op == Reduce::sum)
      for (int64_t i = 0; i < count; ++i) total[size_t(i)] += A(x[i]);
    else
      for (int64_t i = 0; i < count; ++i) total[size_t(i)] = std::max(total[size_t(i)], A(x[i]));
  }
  for (int64_t i = 0; i < count; ++i) out[i] = T(total[size_t(i)]);
}

}  // namespace

void reduce_in_order(Tensor out, const std::vector<Tensor>& parts, Reduce op) {
  visit<float, bf16, double, uint32_t>(out.dtype, [&]<class T>() {
    constexpr int64_t kBlock = 1024;
    for (int64_t first = 0; first < out.numel(); first += kBlock)
      reduce_block(out.ptr<T>() + first, first, std::min(kBlock, out.numel() - first), parts, op);
  });
}

std::vector<Host::Part> parts_of(Tensor t, const std::vector<Piece>& pieces) {
  std::vector<Host::Part> parts;
  for (const Piece& p : pieces) {
    const Tensor rows = t.row_range(p.first, p.rows);
    parts.push_back({p.rank, rows.data, rows.bytes()});
  }
  return parts;
}

std::unique_ptr<Comm> make_comm(Device&, Host& host) {
  return host.shares_memory() ? make_shared_memory_comm(host) : make_message_comm(host);
}

}  // namespace octet::BACKEND
