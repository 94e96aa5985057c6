// d (M,N) = a (M,K) b (N,K)^T [+ bias] [+ residual] [+ d] for M <= 16, bf16 factors, sums in fp32 and in a fixed order.
//
// A thread block takes 16 or 32 rows of b. K is split over its warps: they take pieces of 64 k (a line of memory) in
// turn, each in two halves, and their sums are added in shared memory. In mma.sync (m16n8k16) b is the A operand (16
// rows), a the B operand (8 columns). The order of k within a fragment does not matter as long as both factors agree,
// so each thread loads 16 bytes of a row: k = 8t .. 8t+7 of its half piece, four for a first mma and four for a second.
// Loads run ahead in registers, in a ring of kDepth half pieces; with b_ready (ops.h) the first ones of b are
// issued before the kernels ahead have ended.
//
// g = lane / 4: the row of b and of a   t = lane % 4: the k
#include "ops/decode.h"
#include "ops/gpu/few_rows.h"
#include "ops/gpu/launch.cuh"
#include "ops/gpu/vector.cuh"

namespace octet::BACKEND {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kPiece = 64, kHalf = 32, kRound = kWarps * kPiece;

enum class Fusion { none, norm, norm_and_gate };

template <class D>
struct FewRows {
  const bf16 *a, *b, *bias;
  const D *residual, *before;  // added, unless null; before: d itself
  D* d;
  int M, N, K;
  bool b_ready;
  const bf16* norm = nullptr;  // (K)
  float eps = 0;
};

__device__ inline uint4 load_once(const bf16* p) {  // for b, which no other block reads
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// x = x * w, and the sum of x^2.
__device__ inline float apply_weight(uint4& x, const uint4& w) {
  float v[8], weight[8], squares = 0;
  unpack(v, Pack<bf16>{x});
  unpack(weight, Pack<bf16>{w});
#pragma unroll
  for (int i = 0; i < 8; ++i) squares = fmaf(v[i], v[i], squares), v[i] *= weight[i];
  x = pack<bf16>(v).a;
  return squares;
}

// kTiles: tiles of 16 rows of b; kGroups: groups of 8 rows of a; kDepth, kDepthA: half pieces of b and of a in flight;
// kBlocks: thread blocks an SM.
template <int kTiles_, int kGroups_, int kDepth_, int kDepthA_, int kBlocks_, Fusion kFusion>
struct Form {
  static constexpr int kTiles = kTiles_, kGroups = kGroups_, kDepth = kDepth_, kDepthA = kDepthA_, kBlocks = kBlocks_;
  static_assert(kDepth % 2 == 0 && kDepth % kDepthA == 0, "whole pieces; places in the ring known at compile time");
  static constexpr bool kNorm = kFusion != Fusion::none, kGate = kFusion == Fusion::norm_and_gate;
  static constexpr int kPitch = 16 * kTiles + 4;          // of the sums: their stores have no bank conflicts
  static constexpr int kCols = kGate ? 16 : 16 * kTiles;  // of d
  static constexpr int kEach = (8 * kGroups * kCols + kThreads - 1) / kThreads;  // results of a thread
};
template <class F>
struct Shared {  // each warp's sums, and its sums of squares of the rows of a
  float sums[kWarps][8 * F::kGroups * F::kPitch], squares[kWarps][8 * F::kGroups];
};

// The pieces of a and b that a thread reads.
template <class F, class D>
struct Pieces {
  const bf16 *a, *b;
  int64_t step, second;      // elements to the row 8 further down; to b's next tile (gated: to w_u's rows)
  int left, rows_a, rows_b;  // how many k, and rows of a and b, there are from the thread's own on
  uint4 as[F::kDepthA][F::kGroups], bs[F::kDepth][F::kTiles][2];

  __device__ Pieces(const FewRows<D>& p, int n0) {
    const int warp = int(threadIdx.x) / 32, g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
    step = int64_t(8) * p.K, second = F::kGate ? int64_t(p.N) * p.K : 2 * step;
    left = p.K - warp * kPiece - 8 * t, rows_a = p.M - g, rows_b = p.N - n0 - g;
    a = p.a + int64_t(g + 1) * p.K - left;
    b = p.b + int64_t(n0 + g + 1) * p.K - left;
  }
  static __device__ constexpr int ahead_of(int u) { return u / 2 * kRound + u % 2 * kHalf; }  // half piece u
  __device__ void load_a(int u) {
#pragma unroll
    for (int i = 0; i < F::kGroups; ++i) {
      uint4& to = as[u % F::kDepthA][i];
      to = {};
      if (ahead_of(u) < left && 8 * i < rows_a) to = __ldcg(reinterpret_cast<const uint4*>(a + i * step + ahead_of(u)));
    }
  }
  __device__ void load_b(int u) {
#pragma unroll
    for (int i = 0; i < F::kTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint4& to = bs[u % F::kDepth][i][half];
        to = {};
        const bool there = 8 * half + (F::kGate ? 0 : 16 * i) < rows_b;
        if (ahead_of(u) < left && there) to = load_once(b + i * second + half * step + ahead_of(u));
      }
  }
  __device__ void advance() { left -= ahead_of(F::kDepth), a += ahead_of(F::kDepth), b += ahead_of(F::kDepth); }
  __device__ void multiply(float (&c)[F::kTiles][F::kGroups][4], int u) const {
#pragma unroll
    for (int i = 0; i < F::kTiles; ++i)
#pragma unroll
      for (int j = 0; j < F::kGroups; ++j) {
        const uint4 &b0 = bs[u][i][0], &b8 = bs[u][i][1], &x = as[u % F::kDepthA][j];
        mma_bf16(c[i][j], b0.x, b8.x, b0.y, b8.y, x.x, x.y);
        mma_bf16(c[i][j], b0.z, b8.z, b0.w, b8.w, x.z, x.w);
      }
  }
};

// What is added to a thread's results: loaded early, used at the end.
template <class F, class D>
__device__ void load_added(float (&added)[F::kEach], const FewRows<D>& p, int n0) {
#pragma unroll
  for (int i = 0; i < F::kEach; ++i) {
    const int at = i * kThreads + int(threadIdx.x), m = at / F::kCols, n = n0 + at % F::kCols;
    added[i] = 0;
    if (F::kNorm || m >= p.M || n >= p.N) continue;
    if (p.bias) added[i] += float(p.bias[n]);
    if (p.residual) added[i] += float(p.residual[int64_t(m) * p.N + n]);
    if (p.before) added[i] += float(p.before[int64_t(m) * p.N + n]);
  }
}

// Adds up the warps' sums, in order, and stores the results.
template <class F, class D>
__device__ void finish(const FewRows<D>& p, const Shared<F>& shared, const float (&added)[F::kEach], int n0) {
#pragma unroll
  for (int i = 0; i < F::kEach; ++i) {
    const int at = i * kThreads + int(threadIdx.x), m = at / F::kCols, n = at % F::kCols;
    if (m >= p.M || n0 + n >= p.N) continue;
    float sum = 0, gated = 0, squares = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      sum += shared.sums[w][m * F::kPitch + n];
      if constexpr (F::kGate) gated += shared.sums[w][m * F::kPitch + 16 + n];
      if constexpr (F::kNorm) squares += shared.squares[w][m];
    }
    if constexpr (F::kNorm) {
      const float rstd = 1.f / sqrtf(squares / float(p.K) + p.eps);
      sum *= rstd, gated *= rstd;
    }
    if constexpr (F::kGate) sum = __fdividef(sum, 1.f + __expf(-sum)) * gated;
    p.d[int64_t(m) * p.N + n0 + n] = D(sum + added[i]);
  }
}

template <class F, class D>
__global__ void __launch_bounds__(kThreads, F::kBlocks) few_rows_kernel(const __grid_constant__ FewRows<D> p) {
  __shared__ Shared<F> shared;
  extern __shared__ uint4 norm[];  // (K/8)
  const int warp = int(threadIdx.x) / 32, g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  const int n0 = int(blockIdx.x) * F::kCols;
  Pieces<F, D> pieces(p, n0);
  grid_dependency_trigger();
  if (!p.b_ready) grid_dependency_wait();
#pragma unroll
  for (int u = 0; u < F::kDepth; ++u) pieces.load_b(u);
  if constexpr (F::kNorm)  // b_ready holds for the norm too
    for (int i = int(threadIdx.x); i < p.K / 8; i += kThreads) norm[i] = reinterpret_cast<const uint4*>(p.norm)[i];
  if (p.b_ready) grid_dependency_wait();
#pragma unroll
  for (int u = 0; u < F::kDepthA; ++u) pieces.load_a(u);
  float added[F::kEach], c[F::kTiles][F::kGroups][4] = {}, square[F::kGroups] = {};
  load_added<F>(added, p, n0);

  if constexpr (F::kNorm) __syncthreads();
  for (; pieces.left + 8 * t > 0; pieces.advance()) {  // the same for a whole warp
#pragma unroll
    for (int u = 0; u < F::kDepth; ++u) {
      if constexpr (F::kNorm) {
        const int ahead = pieces.ahead_of(u);
        uint4 w{};
        if (ahead < pieces.left) w = norm[(p.K - pieces.left + ahead) / 8];
#pragma unroll
        for (int j = 0; j < F::kGroups; ++j) square[j] += apply_weight(pieces.as[u % F::kDepthA][j], w);
      }
      pieces.multiply(c, u);
      pieces.load_b(u + F::kDepth);
      pieces.load_a(u + F::kDepthA);
    }
  }

#pragma unroll
  for (int i = 0; i < F::kTiles; ++i)
#pragma unroll
    for (int j = 0; j < F::kGroups; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v)  // row 2t + v % 2 of a, row g + 8 * (v / 2) of b
        shared.sums[warp][(8 * j + 2 * t + v % 2) * F::kPitch + 16 * i + 8 * (v / 2) + g] = c[i][j][v];
  if constexpr (F::kNorm)
#pragma unroll
    for (int j = 0; j < F::kGroups; ++j) {
      square[j] += __shfl_xor_sync(~0u, square[j], 1);
      square[j] += __shfl_xor_sync(~0u, square[j], 2);
      if (t == 0) shared.squares[warp][8 * j + g] = square[j];
    }
  __syncthreads();
  finish<F>(p, shared, added, n0);
}

// Three thread blocks an SM for wide products, two for others, as measured; and as many loads in flight
// as registers then allow.
template <class D, int kTiles, int kGroups, Fusion kFusion>
void launch_groups(Stream& s, const FewRows<D>& p) {
  constexpr bool kNorm = kFusion != Fusion::none;
  constexpr int kBlocks = kTiles == 2 && kGroups == 1 ? 3 : 2;
  constexpr int kDepth = kTiles == 2 ? 2 : kNorm || kGroups == 2 ? 4 : 8, kDepthA = kDepth == 8 ? 4 : 2;
  using F = Form<kTiles, kGroups, kDepth, kDepthA, kBlocks, kFusion>;
  const Grid grid{unsigned(ceil_div(p.N, F::kCols)), kThreads, kNorm ? size_t(p.K) * sizeof(bf16) : 0};
  launch_pdl(s, few_rows_kernel<F, D>, grid, p);
}
template <class D, int kTiles, Fusion kFusion>
void launch_tiles(Stream& s, const FewRows<D>& p) {
  if (p.M <= 8) launch_groups<D, kTiles, 1, kFusion>(s, p);
  else launch_groups<D, kTiles, 2, kFusion>(s, p);
}
// 32 rows of b a block, if that still gives two blocks an SM: then a is read half as often.
template <Fusion kFusion, class D>
void launch(Stream& s, const FewRows<D>& p) {
  if (p.N >= 2 * 32 * s.target().multiprocessors) launch_tiles<D, 2, kFusion>(s, p);
  else launch_tiles<D, 1, kFusion>(s, p);
}

}  // namespace

bool takes_few_rows(const GemmArgs& g) {
  const ProductShape p = shape_of(g);
  return few_rows(p) && p.N < int64_t{1} << 30 && p.K < int64_t{1} << 30 && aligned({g.a.t.data, g.b.t.data}) &&
         (!g.bias || g.bias.dtype == DType::bf16);
}

void few_rows_product(Stream& s, const GemmArgs& g) {
  visit<float, bf16>(g.d.dtype, [&]<class D>() {
    launch<Fusion::none>(s, FewRows<D>{.a = g.a.t.ptr<bf16>(),
                                       .b = g.b.t.ptr<bf16>(),
                                       .bias = g.bias ? g.bias.ptr<bf16>() : nullptr,
                                       .residual = g.residual ? g.residual.ptr<D>() : nullptr,
                                       .before = g.adds() ? g.d.ptr<D>() : nullptr,
                                       .d = g.d.ptr<D>(),
                                       .M = int(g.d.rows()),
                                       .N = int(g.d.cols()),
                                       .K = int(g.a.contracted()),
                                       .b_ready = g.b_ready});
  });
}

void normed_product(Stream& s, const NormedProduct& a) {
  constexpr int64_t kMost = 8192;  // norm weights that fit into shared memory without cudaFuncSetAttribute
  const GemmArgs g{.d = a.y, .a = {a.x}, .b = {a.w}};
  const int64_t outputs = a.gated ? a.w.rows() / 2 : a.w.rows();
  CHECK(a.x.cols() == a.w.cols() && a.norm.numel() == a.x.cols() && a.y.numel() == a.x.rows() * outputs, a.x.shape,
        " normalised by ", a.norm.shape, " times ", a.w.shape, " into ", a.y.shape);
  if (!takes_few_rows(g) || a.x.cols() > kMost || a.norm.dtype != DType::bf16 || !aligned({a.norm.data}) ||
      (a.gated && a.y.dtype != DType::bf16))
    return normed_product_unfused(s, a);
  const Timed timed(s, Kernel::gemm_bf16);
  visit<float, bf16>(a.y.dtype, [&]<class D>() {
    const FewRows<D> p{.a = a.x.ptr<bf16>(),
                       .b = a.w.ptr<bf16>(),
                       .d = a.y.ptr<D>(),
                       .M = int(a.x.rows()),
                       .N = int(outputs),
                       .K = int(a.x.cols()),
                       .b_ready = true,
                       .norm = a.norm.ptr<bf16>(),
                       .eps = float(a.eps)};
    if (!a.gated) return launch<Fusion::norm>(s, p);
    if constexpr (sizeof(D) == 2) launch_tiles<D, 2, Fusion::norm_and_gate>(s, p);
  });
}

}  // namespace octet::BACKEND
