// Matrix products by cuBLASLt, except those of few rows (few_rows.cu) and those it has no kernel for (gemm_plain.cu).
// What its epilogue cannot add, a second kernel adds.
#include <algorithm>
#include <bit>

#include "ops/gpu/few_rows.h"
#include "ops/gpu/gemm_plain.h"
#include "ops/gpu/gemm_plans.h"

namespace octet::BACKEND {
namespace {

bool aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

int alignment_of(const ProductPointers& p, bool bias) {
  uintptr_t all = kBestAlignment;
  for (const void* q : {p.a, p.b, p.c, static_cast<const void*>(p.d), bias ? p.bias : nullptr})
    all |= reinterpret_cast<uintptr_t>(q);
  return 1 << std::countr_zero(all);
}

void check_fp8(const GemmArgs& g) {
  const int64_t N = g.d.cols(), K = g.a.contracted();
  CHECK(!g.a.transposed && !g.b.transposed, "FP8 factors are contiguous along the contracted axis");
  CHECK(is_fp8(g.b.t.dtype) && !(g.a.t.dtype == DType::e5m2 && g.b.t.dtype == DType::e5m2), name_of(g.a.t.dtype), " x ",
        name_of(g.b.t.dtype), " is no FP8 product of the hardware");
  CHECK(K % 16 == 0 && N % 16 == 0, "sizes of an FP8 product are multiples of 16: N = ", N, ", K = ", K);
  CHECK(aligned(g.a.t.data, 16) && aligned(g.b.t.data, 16) && aligned(g.d.data, 16),
        "tensors of an FP8 product are aligned to 16 bytes");
  CHECK(aligned(g.a.scale_inv, 16) && aligned(g.b.scale_inv, 16), "cuBLASLt wants FP8 scales aligned to 16 bytes, not ",
        static_cast<const void*>(g.a.scale_inv), " and ", static_cast<const void*>(g.b.scale_inv));
}

void check(const GemmArgs& g) {
  const int64_t M = g.d.rows(), N = g.d.cols(), K = g.a.contracted();
  CHECK(g.b.contracted() == K && (K == 0 || (g.a.rows() == M && g.b.rows() == N)), "shapes ", g.d.shape, " = ",
        g.a.t.shape, g.a.transposed ? "^T x " : " x ", g.b.t.shape, g.b.transposed ? "^T" : "");
  CHECK(!g.residual || (g.residual.dtype == g.d.dtype && g.residual.numel() == g.d.numel()), "residual of shape ",
        g.residual.shape, " and type ", name_of(g.residual.dtype));
  CHECK(!(g.residual && g.first_term), "a first term has no residual");
  CHECK(!g.bias || g.bias.numel() == N, "bias of shape ", g.bias.shape, " for ", N, " columns");
  if (is_fp8(g.a.t.dtype) || is_fp8(g.b.t.dtype)) check_fp8(g);
  else
    CHECK(g.a.t.dtype == g.b.t.dtype && !g.a.scale_inv && !g.b.scale_inv, "a product of ", name_of(g.a.t.dtype),
          " and ", name_of(g.b.t.dtype));
}

template <class D, class B>
__global__ void add_bias_kernel(D* d /*(M,N) +=*/, const B* bias /*(N)*/, int64_t count, int64_t N) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    d[i] = D(float(d[i]) + float(bias[i % N]));
}

void add_bias(Stream& s, Tensor d, Tensor bias) {
  visit<float, bf16>(d.dtype, [&]<class D>() {
    visit<float, bf16>(bias.dtype, [&]<class B>() {
      add_bias_kernel<<<4 * s.target().multiprocessors, 256, 0, raw(s)>>>(d.ptr<D>(), bias.ptr<B>(), d.numel(),
                                                                          d.cols());
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

// K == 0: the product is zero, only the addends remain.
void empty_product(Stream& s, const GemmArgs& g) {
  if (g.adds()) return;
  if (g.residual) copy(s, g.d, g.residual);
  else fill_zero(s, g.d);
}

}  // namespace

void gemm(Stream& s, const GemmArgs& g) {
  const Timed timed(s, product_class(g.a.t.dtype));
  if (g.d.numel() == 0) return;
  check(g);
  if (g.a.contracted() > 0 && takes_few_rows(g)) return few_rows_product(s, g);
  const bool both = g.residual && g.accumulate;  // cuBLASLt adds one matrix
  if (both) add(s, g.d, g.d, g.residual);
  if (g.a.contracted() == 0) {
    empty_product(s, g);
    if (g.bias) add_bias(s, g.d, g.bias);
    return;
  }
  ProductKey key{shape_of(g)};
  const ProductPointers p{.a = g.a.t.data,
                          .b = g.b.t.data,
                          .c = key.shape.residual ? g.residual.data : g.d.data,
                          .d = g.d.data,
                          .a_scale = g.a.scale_inv,
                          .b_scale = g.b.scale_inv,
                          .bias = g.bias.data,
                          .first_term = g.first_term};
  key.alignment = alignment_of(p, key.shape.bias);
  ProductPlans& plans = ProductPlans::of(s.device());
  bool done = plans.run(s, key, p);
  if (!done && key.shape.bias) {  // perhaps there is a kernel without the bias
    key.shape.bias = false;
    done = plans.run(s, key, p);
  }
  if (!done && !is_fp8(g.a.t.dtype)) {  // rows that no kernel of cuBLASLt can load
    plain_product(s, g, key.shape.residual ? g.residual : Tensor{});
    done = true;
  }
  CHECK(done, "cuBLASLt ", cublasLtGetVersion(), " has no kernel for ", text_of(key), " on ", s.device().name());
  if (g.bias && !key.shape.bias) add_bias(s, g.d, g.bias);
}

}  // namespace octet::BACKEND
