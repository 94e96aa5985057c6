// Generation on the cpu: parallel over the heads of all sequences.
#include "ops/decode.h"

#include <algorithm>

#include "ops/cpu/fast_math.h"

namespace octet::BACKEND {
namespace {

int64_t start_of(Tensor start, int64_t b) { return start ? int64_t(start.ptr<int32_t>()[b]) : 0; }

void check_cache(const KvRows& kv, const Heads& h, int64_t B) {
  const Shape expected{B, h.G, kv.k.shape[2], h.D};
  CHECK(kv.k.shape == expected && kv.v.shape == expected, "cache ", kv.k.shape, ", ", kv.v.shape, " for ", B,
        " sequences, ", h.G, " heads of ", h.D);
}
void check_range(int64_t first, int64_t count, int64_t limit) {
  CHECK(first >= 0 && first + count <= limit, "positions ", first, " to ", first + count - 1, " of ", limit);
}

}  // namespace

void kv_append(Stream&, const KvAppend& a, Tensor qkv) {
  const Heads& h = a.heads;
  const int64_t B = qkv.rows() / a.T, S = a.kv.k.shape[2], W = h.width();
  check_cache(a.kv, h, B);
  CHECK(qkv.cols() == W && qkv.rows() == B * a.T, qkv.shape, ", T ", a.T);
  for (int64_t b = 0; b < B; ++b) check_range(a.first + start_of(a.start, b), a.T, S);
  visit_plain(qkv.dtype, [&]<class P>() {
    const P* x = qkv.ptr<P>();
    P *k = a.kv.k.ptr<P>(), *v = a.kv.v.ptr<P>();
#pragma omp parallel for
    for (int64_t n = 0; n < B * a.T; ++n) {
      const int64_t b = n / a.T, p = n % a.T + a.first + start_of(a.start, b);
      CHECK(p >= 0 && p < S, "position ", p, " of ", S);
      for (int64_t g = 0; g < h.G; ++g) {
        const int64_t to = ((b * h.G + g) * S + p) * h.D;
        std::copy_n(x + n * W + h.k(g), h.D, k + to);
        std::copy_n(x + n * W + h.v(g), h.D, v + to);
      }
    }
  });
}

void attention_decode(Stream&, Tensor o, Tensor qkv, const DecodeAttention& a) {
  const Heads& h = a.heads;
  const int64_t B = qkv.rows(), S = a.kv.k.shape[2], D = h.D;
  check_cache(a.kv, h, B);
  CHECK(o.numel() == B * h.H * D && qkv.cols() == h.width(), o.shape, " from ", qkv.shape);
  int64_t longest = 0;
  for (int64_t b = 0; b < B; ++b) {
    check_range(start_of(a.position, b), 1, S);
    longest = std::max(longest, start_of(a.position, b) + 1);
  }
  visit_plain(qkv.dtype, [&]<class P>() {
    using R = Real<P>;
    const P *in = qkv.ptr<P>(), *ks = a.kv.k.ptr<P>(), *vs = a.kv.v.ptr<P>();
    P* out = o.ptr<P>();
#pragma omp parallel
    {
      const auto q = buffer<R>(D), row = buffer<R>(D), sum = buffer<R>(D), s = buffer<R>(longest);
#pragma omp for schedule(dynamic)
      for (int64_t bh = 0; bh < B * h.H; ++bh) {
        const int64_t b = bh / h.H, head = bh % h.H, g = head / (h.H / h.G);
        const int64_t keys = start_of(a.position, b) + 1,
                      first = a.window > 0 ? std::max<int64_t>(0, keys - a.window) : 0;
        const P *k = ks + (b * h.G + g) * S * D, *v = vs + (b * h.G + g) * S * D;
        widen(q.get(), in + b * h.width() + h.q(head), D);
        for (int64_t d = 0; d < D; ++d) q[d] *= R(a.scale);
        for (int64_t p = first; p < keys; ++p) {
          widen(row.get(), k + p * D, D);
          s[p] = lane_sum<R>(D, [&](int64_t d) { return q[d] * row[d]; });
        }
        const R inverse = R(1) / exp_row(&s[first], keys - first, largest_of(&s[first], keys - first));
        std::fill_n(sum.get(), D, R(0));
        for (int64_t p = first; p < keys; ++p) {
          widen(row.get(), v + p * D, D);
          for (int64_t d = 0; d < D; ++d) sum[d] += s[p] * row[d];
        }
        for (int64_t d = 0; d < D; ++d) sum[d] *= inverse;
        narrow(out + bh * D, sum.get(), D);
      }
    }
  });
}

void attention_step(Stream& s, Tensor o, Tensor qkv, Tensor rope_table, const DecodeAttention& a) {
  rope_forward(s, qkv, {.table = rope_table, .heads = a.heads, .start = a.position});
  kv_append(s, {.kv = a.kv, .heads = a.heads, .start = a.position}, qkv);
  attention_decode(s, o, qkv, a);
}

void normed_product(Stream& s, const NormedProduct& a) { normed_product_unfused(s, a); }

void advance(Stream&, Tensor position) {
  for (int64_t b = 0; b < position.numel(); ++b) ++position.ptr<int32_t>()[b];
}

void argmax(Stream&, Tensor index, Tensor largest, Tensor x, int64_t vocabulary) {
  const int64_t N = x.rows(), V = x.cols();
  CHECK(index.numel() == N && largest.numel() == N && largest.dtype == x.dtype, index.shape, " of ", x.shape);
  CHECK(vocabulary > 0 && vocabulary <= V, vocabulary, " of ", x.shape);
  visit<double, float>(x.dtype, [&]<class R>() {
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n) {
      const R* row = x.ptr<R>() + n * V;
      R best = -INFINITY;
      int64_t at = 0;
      for (int64_t i = 0; i < vocabulary; ++i)
        if (row[i] > best || (std::isnan(row[i]) && !std::isnan(best))) best = row[i], at = i;
      index.ptr<int32_t>()[n] = int32_t(at);
      largest.ptr<R>()[n] = best;
    }
  });
}

}  // namespace octet::BACKEND
