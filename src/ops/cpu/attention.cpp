// Causal attention with grouped key/value heads, one block of queries at a time, so that memory grows with T, not T^2.
// Forward saves the log-sum-exp of each row, from which backward recomputes p = exp(s - lse). Forward is parallel over
// (b, h); backward over (b, g), because the query heads of a group add to the same dk and dv, in order.
// With documents, blocks start anew at each document: nothing of another one is multiplied, and a document's rows come
// from the same products as if it stood alone.
#include "ops/cpu/blas.h"
#include "ops/cpu/fast_math.h"
#include "ops/ops.h"

namespace octet::BACKEND {

namespace {

constexpr int64_t kQueries = 64;  // of a block

struct Block {  // queries t .. t+n-1 of sequence b, all of one document, see keys among k .. k+keys-1
  int64_t t, n, k, keys;
  Block(int64_t b, int64_t t0, const Attention& a) : t(t0) {
    int64_t begin = 0, end = a.T;  // of the document
    if (a.documents)
      begin = a.documents.ptr<int32_t>()[b * a.T + t], end = a.documents.ptr<int32_t>()[(a.B + b) * a.T + t];
    n = std::min(kQueries, end - t);
    k = a.window > 0 ? std::max(begin, t - a.window + 1) : begin;
    keys = t + n - k;
  }
  // Query row i of the block sees columns first(i) .. last(i)-1 of its scores.
  int64_t first(int64_t i, int64_t window) const {
    return window > 0 ? std::max<int64_t>(0, t + i - window + 1 - k) : 0;
  }
  int64_t last(int64_t i) const { return t + i + 1 - k; }
};

template <class R>
void zero_outside(R* row, int64_t n, int64_t first, int64_t last) {
  std::fill(row, row + first, R(0));
  std::fill(row + last, row + n, R(0));
}

// Copies one head of the T rows of a sequence from or to x (row 0; `width` elements a row); contiguous (T, D) here.
template <class T, class R>
void load_head(R* head, const T* x, const Attention& a, int64_t width, R factor) {
  const int64_t D = a.heads.D;
  for (int64_t t = 0; t < a.T; ++t)
    for (int64_t d = 0; d < D; ++d) head[t * D + d] = R(x[t * width + d]) * factor;
}
template <class T, class R>
void store_head(T* x, const R* head, const Attention& a, int64_t width, R factor) {
  const int64_t D = a.heads.D;
  for (int64_t t = 0; t < a.T; ++t)
    for (int64_t d = 0; d < D; ++d) x[t * width + d] = T(head[t * D + d] * factor);
}

template <class R>
struct ForwardHead {
  const Attention& a;
  std::unique_ptr<R[]> q, k, v, o, s;
  explicit ForwardHead(const Attention& args) : a(args) {
    for (auto* p : {&q, &k, &v, &o}) *p = buffer<R>(a.T * a.heads.D);
    s = buffer<R>(kQueries * a.T);
  }
  // o = softmax(q k^T) v of a head of a sequence, q already scaled; lse (T)
  void run(R* lse, int64_t sequence) {
    const int64_t D = a.heads.D;
    for (int64_t t = 0, n = 0; t < a.T; t += n) {
      const Block b(sequence, t, a);
      n = b.n;
      multiply<R>({b.n, b.keys, D}, 1, {&q[t * D], D}, {&k[b.k * D], D, true}, 0, {s.get(), b.keys});
      R inverse[kQueries];
      for (int64_t i = 0; i < b.n; ++i) {
        R* row = s.get() + i * b.keys;
        const int64_t first = b.first(i, a.window), last = b.last(i);
        const R m = largest_of(row + first, last - first), sum = exp_row(row + first, last - first, m);
        zero_outside(row, b.keys, first, last);
        lse[t + i] = m + std::log(sum);
        inverse[i] = R(1) / sum;
      }
      multiply<R>({b.n, D, b.keys}, 1, {s.get(), b.keys}, {&v[b.k * D], D}, 0, {&o[t * D], D});
      for (int64_t i = 0; i < b.n; ++i)
        for (int64_t d = 0; d < D; ++d) o[(t + i) * D + d] *= inverse[i];
    }
  }
};

template <class R>
struct BackwardHead {
  const Attention& a;
  std::unique_ptr<R[]> q, k, v, o, d_o, dq, dk, dv, p, ds;
  explicit BackwardHead(const Attention& args) : a(args) {
    for (auto* x : {&q, &k, &v, &o, &d_o, &dq, &dk, &dv}) *x = buffer<R>(a.T * a.heads.D);
    for (auto* x : {&p, &ds}) *x = buffer<R>(kQueries * a.T);
  }
  // dq = ds k,  dk += ds^T q,  dv += p^T do,  ds = p * (do v^T - rowsum(do * o)), all without `scale`, which q carries
  void run(const R* lse, int64_t sequence) {
    const int64_t D = a.heads.D;
    for (int64_t t = 0, n = 0; t < a.T; t += n) {
      const Block b(sequence, t, a);
      n = b.n;
      R* dot = &d_o[t * D];
      multiply<R>({b.n, b.keys, D}, 1, {&q[t * D], D}, {&k[b.k * D], D, true}, 0, {p.get(), b.keys});
      multiply<R>({b.n, b.keys, D}, 1, {dot, D}, {&v[b.k * D], D, true}, 0, {ds.get(), b.keys});
      for (int64_t i = 0; i < b.n; ++i) {
        R *pi = p.get() + i * b.keys, *di = ds.get() + i * b.keys;
        const R *grad = dot + i * D, *out = &o[(t + i) * D];
        const R delta = lane_sum<R>(D, [=](int64_t d) { return grad[d] * out[d]; }), l = lse[t + i];
        const int64_t first = b.first(i, a.window), last = b.last(i);
        for (int64_t j = first; j < last; ++j) pi[j] = fast_exp(pi[j] - l);
        for (int64_t j = first; j < last; ++j) di[j] = pi[j] * (di[j] - delta);
        zero_outside(pi, b.keys, first, last);
        zero_outside(di, b.keys, first, last);
      }
      multiply<R>({b.n, D, b.keys}, 1, {ds.get(), b.keys}, {&k[b.k * D], D}, 0, {&dq[t * D], D});
      multiply<R>({b.keys, D, b.n}, 1, {ds.get(), b.keys, true}, {&q[t * D], D}, 1, {&dk[b.k * D], D});
      multiply<R>({b.keys, D, b.n}, 1, {p.get(), b.keys, true}, {dot, D}, 1, {&dv[b.k * D], D});
    }
  }
};

void check_shapes(const Tensor& qkv, const Tensor& o, const Tensor& lse, const Attention& a) {
  const Heads& h = a.heads;
  CHECK(qkv.rows() == a.B * a.T && qkv.cols() == h.width(), qkv.shape, " for B ", a.B, ", T ", a.T);
  CHECK(o.numel() == a.B * a.T * h.H * h.D && lse.numel() == a.B * h.H * a.T, o.shape, ", lse ", lse.shape);
  CHECK(h.G > 0 && h.H % h.G == 0 && (!h.interleaved || h.G == h.H), h.H, " heads of ", h.G, " groups");
  if (!a.documents) return;
  CHECK(a.documents.dtype == DType::i32 && a.documents.numel() == 2 * a.B * a.T, a.documents.shape, " documents");
  const int32_t *begin = a.documents.ptr<int32_t>(), *end = begin + a.B * a.T;
  for (int64_t n = 0; n < a.B * a.T; ++n)
    CHECK(0 <= begin[n] && begin[n] <= n % a.T && n % a.T < end[n] && end[n] <= a.T, "position ", n % a.T,
          " in a document of ", begin[n], " to ", end[n]);
}

}  // namespace

void attention_forward(Stream&, Tensor o, Tensor lse, Tensor qkv, const Attention& a, Tensor) {
  check_shapes(qkv, o, lse, a);
  const Heads& heads = a.heads;
  const int64_t W = heads.width(), H = heads.H, D = heads.D, T = a.T;
  visit_plain(qkv.dtype, [&]<class P>() {
    using R = Real<P>;
    const P* in = qkv.ptr<P>();
    P* out = o.ptr<P>();
    R* sums = lse.ptr<R>();
#pragma omp parallel
    {
      ForwardHead<R> head(a);
#pragma omp for schedule(dynamic)
      for (int64_t bh = 0; bh < a.B * H; ++bh) {
        const int64_t b = bh / H, h = bh % H, g = h / (H / heads.G);
        const P* x = in + b * T * W;
        load_head(head.q.get(), x + heads.q(h), a, W, R(a.scale));
        load_head(head.k.get(), x + heads.k(g), a, W, R(1));
        load_head(head.v.get(), x + heads.v(g), a, W, R(1));
        head.run(sums + bh * T, b);
        store_head(out + b * T * H * D + h * D, head.o.get(), a, H * D, R(1));
      }
    }
  });
}

void attention_backward(Stream&, const AttentionBackward& t, const Attention& a) {
  check_shapes(t.qkv, t.o, t.lse, a);
  const Heads& heads = a.heads;
  CHECK(t.dqkv.numel() == t.qkv.numel() && t.d_o.numel() == t.o.numel(), t.dqkv.shape, " from ", t.d_o.shape);
  const int64_t W = heads.width(), H = heads.H, G = heads.G, D = heads.D, T = a.T;
  visit_plain(t.qkv.dtype, [&]<class P>() {
    using R = Real<P>;
    const P *in = t.qkv.ptr<P>(), *os = t.o.ptr<P>(), *dos = t.d_o.ptr<P>();
    P* out = t.dqkv.ptr<P>();
    const R* sums = t.lse.ptr<R>();
#pragma omp parallel
    {
      BackwardHead<R> head(a);
#pragma omp for schedule(dynamic)
      for (int64_t bg = 0; bg < a.B * G; ++bg) {
        const int64_t b = bg / G, g = bg % G;
        const P* x = in + b * T * W;
        P* dx = out + b * T * W;
        load_head(head.k.get(), x + heads.k(g), a, W, R(1));
        load_head(head.v.get(), x + heads.v(g), a, W, R(1));
        std::fill_n(head.dk.get(), T * D, R(0));
        std::fill_n(head.dv.get(), T * D, R(0));
        for (int64_t h = g * (H / G); h < (g + 1) * (H / G); ++h) {
          load_head(head.q.get(), x + heads.q(h), a, W, R(a.scale));
          load_head(head.o.get(), os + b * T * H * D + h * D, a, H * D, R(1));
          load_head(head.d_o.get(), dos + b * T * H * D + h * D, a, H * D, R(1));
          head.run(sums + (b * H + h) * T, b);
          store_head(dx + heads.q(h), head.dq.get(), a, W, R(a.scale));
        }
        store_head(dx + heads.k(g), head.dk.get(), a, W, R(1));
        store_head(dx + heads.v(g), head.dv.get(), a, W, R(1));
      }
    }
  });
}

}  // namespace octet::BACKEND
