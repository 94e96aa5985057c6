// Rotary embedding: each (i, i + R/2) pair of a head is rotated by its angle, and back in the backward pass.
#include "ops/cpu/emit.h"

namespace octet::BACKEND {

namespace {

template <class R>
struct Rotation {
  const R* table;  // (positions, R/2, 2)
  Heads heads;
  int64_t half, T, first;
  const int32_t* start;  // or null
  R sign;                // -1: the inverse rotation

  void head(R* x, const R* angle) const {
    for (int64_t i = 0; i < half; ++i) {
      const R c = angle[2 * i], s = sign * angle[2 * i + 1], a = x[i], b = x[i + half];
      x[i] = a * c - b * s;
      x[i + half] = b * c + a * s;
    }
  }
  void row(R* x, int64_t n) const {
    const R* angle = table + (n % T + first + (start ? start[n / T] : 0)) * half * 2;
    for (int64_t h = 0; h < heads.H; ++h) head(x + heads.q(h), angle);
    for (int64_t g = 0; g < heads.G; ++g) head(x + heads.k(g), angle);
  }
};

template <class R>
Rotation<R> rotation(const Rope& r, Tensor qkv, R sign) {
  const Shape& s = r.table.shape;
  CHECK(s.rank == 3 && s[2] == 2 && 2 * s[1] <= r.heads.D, "table ", s, ", head size ", r.heads.D);
  CHECK(qkv.cols() == r.heads.width(), qkv.shape, " is not ", r.heads.width(), " wide");
  CHECK(r.first >= 0 && std::min(r.T, qkv.rows()) + r.first <= s[0], r.T, " + ", r.first, " positions of ", s[0]);
  CHECK(!r.heads.interleaved || r.heads.G == r.heads.H, "interleaved heads come with their own k and v");
  const int32_t* start = r.start ? r.start.ptr<int32_t>() : nullptr;
  for (int64_t b = 0; start && b * r.T < qkv.rows(); ++b)
    CHECK(start[b] + r.T + r.first <= s[0], start[b], " + ", r.T, " + ", r.first, " positions of ", s[0]);
  return {r.table.ptr<R>(), r.heads, s[1], r.T, r.first, start, sign};
}

}  // namespace

void rope_forward(Stream&, Tensor qkv, const Rope& rope) {
  visit_plain(qkv.dtype, [&]<class T>() {
    using R = Real<T>;
    const auto rotate = rotation<R>(rope, qkv, 1);
    const T* x = qkv.ptr<T>();
    const int64_t width = qkv.cols();
    emit_rows<T>(Operand{.plain = qkv}, qkv.rows(), width, [=](int64_t n, R* v) {
      widen(v, x + n * width, width);
      rotate.row(v, n);
    });
  });
}

void rope_backward(Stream&, Operand d_out, Tensor d_in, const Rope& rope) {
  visit_plain(d_in.dtype, [&]<class T>() {
    using R = Real<T>;
    const auto rotate = rotation<R>(rope, d_in, -1);
    const T* x = d_in.ptr<T>();
    const int64_t width = d_in.cols();
    emit_rows<T>(d_out, d_in.rows(), width, [=](int64_t n, R* v) {
      widen(v, x + n * width, width);
      rotate.row(v, n);
    });
  });
}

}  // namespace octet::BACKEND
