// Rotary embedding in place: a thread rotates 8 pairs of four heads by the same angles, or one narrow head
// (rope_narrow.cuh).
#include "ops/gpu/rope_narrow.cuh"

namespace octet::BACKEND {

namespace {

// A thread has row n, pairs i .. i+7, and four heads g, g + groups, .... The threads of a row are neighbours, so that
// whole rows are in flight at a time: pieces of one head from many rows would lose a third of the memory's bandwidth.
template <class T, bool kFast, Rotation kRotation>
__global__ void __launch_bounds__(256)
    forward_kernel(T* x, const Layout l, const Angles angles, unsigned threads, int64_t width, int groups) {
  const unsigned vectors = (l.half + 7) / 8, index = blockIdx.x * 256u + threadIdx.x, each = index / vectors;
  in_order();
  if (index >= threads) return;
  const int i = int(index % vectors) * 8, g = int(each % groups), count = min(8, l.half - i);
  const int64_t n = each / groups;
  T* row = x + n * width + i;
  Pack<T> lo[4], hi[4];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (const int h = g + k * groups; h < l.rotated_heads) {
      lo[k] = load<kFast>(row + l.rotated_col(h), count);
      hi[k] = load<kFast>(row + l.rotated_col(h) + l.half, count);
    }
  float4 pairs[4];
  angles.load<kFast>(pairs, n, i, count);
  float cos[8], sin[8];
  angles.split(cos, sin, pairs);
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (const int h = g + k * groups; h < l.rotated_heads) {
      float a[8], b[8];
      unpack(a, lo[k]);
      unpack(b, hi[k]);
      rotate<kRotation>(a, b, cos, sin);
      store<kFast>(row + l.rotated_col(h), a, count);
      store<kFast>(row + l.rotated_col(h) + l.half, b, count);
    }
}

}  // namespace

void rotate_in_place(Stream& s, Tensor qkv, const Rope& r, Rotation rotation) {
  const Layout l = layout_of(r, qkv);
  const int64_t N = qkv.rows(), vectors = ceil_div(l.half, 8);
  if (N == 0 || l.half == 0) return;
  const int64_t groups = ceil_div(l.rotated_heads, 4), threads = N * vectors * groups;
  CHECK(threads < int64_t{1} << 32, "threads for ", qkv.shape, " are counted in 32 bits");
  const Angles angles = angles_of(r);
  if (is_narrow(l) && qkv.dtype == DType::bf16 && aligned({qkv.data})) {
    const int64_t heads = N * l.rotated_heads;
    CHECK(heads < int64_t{1} << 32, "threads for ", qkv.shape, " are counted in 32 bits");
    with_narrow_half(l.half, [&]<int kHalf>() {
      const auto kernel = rotation == Rotation::forward ? narrow_kernel<kHalf, Rotation::forward>
                                                        : narrow_kernel<kHalf, Rotation::inverse>;
      launch_pdl(s, kernel, {blocks_for(heads, 256), 256}, qkv.ptr<bf16>(), l, angles, unsigned(heads), qkv.cols());
    });
    return;
  }
  visit<float, bf16>(qkv.dtype, [&]<class T>() {
    with_bool(l.half % 8 == 0 && l.D % 8 == 0 && aligned({qkv.data}), [&]<bool kFast>() {
      const auto kernel = rotation == Rotation::forward ? forward_kernel<T, kFast, Rotation::forward>
                                                        : forward_kernel<T, kFast, Rotation::inverse>;
      launch_pdl(s, kernel, {blocks_for(threads, 256), 256}, qkv.ptr<T>(), l, angles, unsigned(threads), qkv.cols(),
                 int(groups));
    });
  });
}

void rope_forward(Stream& s, Tensor qkv, const Rope& rope) {
  const Timed timed(s, Kernel::rope);
  rotate_in_place(s, qkv, rope, Rotation::forward);
}

}  // namespace octet::BACKEND
