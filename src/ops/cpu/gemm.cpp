// Matrix products: factors are widened to fp32 (fp64 for f64), in which FP8 codes are exact; then OpenBLAS computes
// tiles of d. The tiles depend on the shape alone, so that any number of threads gives the same bits.
#include "ops/cpu/blas.h"
#include "ops/cpu/rows.h"

namespace octet::BACKEND {

namespace {

template <class R>
class Widened {  // a factor in type R, in its stored layout; a copy only where the type differs
 public:
  explicit Widened(const Factor& f) : transposed_(f.transposed), ld_(f.t.cols()) {
    CHECK(!f.transposed || !is_fp8(f.t.dtype), "FP8 factors are stored as they are contracted");
    if (f.t.dtype == dtype_of<R>) {
      data_ = f.t.ptr<R>();
      return;
    }
    const int64_t n = f.t.numel();
    own_ = buffer<R>(n);
    data_ = own_.get();
    visit<double, float, bf16, f16, e4m3, e5m2>(f.t.dtype, [&]<class T>() {
      const T* in = f.t.ptr<T>();
      R* out = own_.get();
      constexpr int64_t kBlock = 1 << 14;
#pragma omp parallel for
      for (int64_t i = 0; i < n; i += kBlock) widen(out + i, in + i, std::min(kBlock, n - i));
    });
  }
  // Rows first.. of the (rows, K) matrix; by_columns: as (K, rows).
  Matrix<const R> rows(int64_t first, bool by_columns) const {
    return {data_ + (transposed_ ? first : first * ld_), ld_, transposed_ != by_columns};
  }

 private:
  bool transposed_;
  int64_t ld_;
  std::unique_ptr<R[]> own_;
  const R* data_ = nullptr;
};

struct Tile {
  int64_t m = 256, n = 512;
  int64_t down(int64_t M) const { return (M + m - 1) / m; }
  int64_t across(int64_t N) const { return (N + n - 1) / n; }
};
Tile tile_for(int64_t M, int64_t N) {  // large, as every call of OpenBLAS packs its factors; but enough for all threads
  Tile t;
  while (t.down(M) * t.across(N) < 8 && std::max(t.m, t.n) > 64) (t.m > t.n ? t.m : t.n) /= 2;
  return t;
}

// The epilogue of one row of a tile:  d = sum * scale [+ bias] [+ residual] [+ d]
template <class D, class R>
struct Epilogue {
  D* d;
  const D* residual;
  Tensor bias;
  R scale;
  bool accumulate;

  void row(int64_t at, int64_t column, R* v, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) v[i] *= scale;
    if (bias)
      visit_plain(bias.dtype, [&]<class B>() {
        const B* b = bias.ptr<B>() + column;
        for (int64_t i = 0; i < n; ++i) v[i] += R(Real<B>(b[i]));
      });
    if (residual)
      for (int64_t i = 0; i < n; ++i) v[i] += R(Real<D>(residual[at + i]));
    if (accumulate)
      for (int64_t i = 0; i < n; ++i) v[i] += R(Real<D>(d[at + i]));
    narrow(d + at, v, n);
  }
};

template <class D, class R>
void gemm_as(const GemmArgs& g) {
  const int64_t M = g.d.rows(), N = g.d.cols(), K = g.a.contracted();
  const Widened<R> a(g.a), b(g.b);
  const R scale = R(g.a.scale_inv ? *g.a.scale_inv : 1) * R(g.b.scale_inv ? *g.b.scale_inv : 1);
  const Epilogue<D, R> finish{g.d.ptr<D>(), g.residual ? g.residual.ptr<D>() : nullptr, g.bias, scale, g.adds()};
  const Tile tile = tile_for(M, N);
  const int64_t across = tile.across(N), tiles = tile.down(M) * across;
#pragma omp parallel
  {
    const auto product = buffer<R>(tile.m * tile.n);
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t m = i / across * tile.m, n = i % across * tile.n;
      const Extent e{std::min(tile.m, M - m), std::min(tile.n, N - n), K};
      const auto am = a.rows(m, false), bn = b.rows(n, true);
      if constexpr (std::is_same_v<D, R>) {  // nothing else to add: OpenBLAS writes d itself
        if (!g.bias && !g.residual) {
          multiply<R>(e, scale, am, bn, R(g.adds()), {g.d.ptr<D>() + m * N + n, N});
          continue;
        }
      }
      multiply<R>(e, 1, am, bn, 0, {product.get(), tile.n});
      for (int64_t r = 0; r < e.m; ++r) finish.row((m + r) * N + n, n, product.get() + r * tile.n, e.n);
    }
  }
}

}  // namespace

void gemm(Stream&, const GemmArgs& g) {
  const int64_t M = g.d.rows(), N = g.d.cols();
  CHECK(g.a.rows() == M && g.b.rows() == N && g.a.contracted() == g.b.contracted(), g.d.shape, " = ", g.a.t.shape,
        g.a.transposed ? "^T" : "", " @ ", g.b.t.shape, g.b.transposed ? "" : "^T");
  CHECK(!g.bias || g.bias.numel() == N, "bias ", g.bias.shape, " of ", g.d.shape);
  CHECK(!g.residual || (g.residual.numel() == M * N && g.residual.dtype == g.d.dtype), "residual ", g.residual.shape);
  const bool f64 = g.d.dtype == DType::f64 || g.a.t.dtype == DType::f64 || g.b.t.dtype == DType::f64;
  visit_plain(g.d.dtype, [&]<class D>() { f64 ? gemm_as<D, double>(g) : gemm_as<D, float>(g); });
}

}  // namespace octet::BACKEND
