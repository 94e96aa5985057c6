// Rotary embedding, backward: a producer whose unit is a pair of vectors (i, i + R/2), so that it may write over its
// input and turn in one pass.
#include "ops/gpu/rope.cuh"

namespace octet::BACKEND {

namespace {

template <class T>
struct RopeBackward {
  static constexpr int kWays = 2;
  struct Raw {
    Pack<T> a, b;
  };
  const T* x;
  int64_t width;
  Layout l;
  Angles angles;
  int per_head, units;  // units
  __device__ Place place(int unit) const {
    const int s = unit / per_head, j = unit % per_head, col = s * l.D, pairs = (l.half + 7) / 8;
    const bool value = l.is_value(s);
    if (!value && j < pairs) {
      const int i = 8 * j, count = min(8, l.half - i);
      return {{col + i, col + l.half + i}, {count, count}, i};
    }
    const int from = value ? 16 * j : 2 * l.half + 16 * (j - pairs);  // copied through, 16 columns a unit
    return {{col + from, col + from + 8}, {max(0, min(8, l.D - from)), max(0, min(8, l.D - from - 8))}};
  }
  template <bool kFast>
  __device__ void load(Raw& raw, int64_t n, const Place& p) const {
    raw.a = BACKEND::load<kFast>(x + n * width + p.col[0], p.count[0]);
    raw.b = BACKEND::load<kFast>(x + n * width + p.col[1], p.count[1]);
  }
  __device__ void compute(float (&y)[2][8], const Raw& raw, int64_t n, const Place& p) const {
    unpack(y[0], raw.a);
    unpack(y[1], raw.b);
    if (p.i < 0) return;
    float cos[8], sin[8];
    float4 pairs[4];
    if (l.half % 8 == 0) angles.load<true>(pairs, n, p.i, 8);
    else angles.load<false>(pairs, n, p.i, p.count[0]);
    angles.split(cos, sin, pairs);
    rotate(y[0], y[1], cos, sin);
  }
};

// Of head sizes up to 128, with the transposed form. All heads of a row turn by the same angles, which weigh as much as
// two heads: a block takes 128 rows through many tiles and keeps their angles in shared memory. The values of the next
// half tile are on their way while this one's codes are turned and stored.
constexpr int kMaxPairs = 64, kBlocksPerSm = 2;

template <class T>
struct TurnedBlock {
  TurnedTile tile[2];
  float4 angles[128 * kMaxPairs / 2];  // (rows, 4, R/16): the k-th quarter of the pairs of all units lies together
};

template <class T>
__device__ inline void keep_angles(float4* kept, const RopeBackward<T>& f, int64_t row0, int64_t rows) {
  const int each = f.l.half / 2, units = each / 4;  // float4s of a row
  for (int e = threadIdx.x; e < 128 * each; e += 256) {
    const int r = e / each, k = e % each;
    if (row0 + r >= rows) break;
    const float* from = f.angles.table + (int64_t(unsigned(row0 + r) % f.angles.T) + f.angles.first) * f.l.half * 2;
    kept[r * each + k % 4 * units + k / 4] = __ldg(reinterpret_cast<const float4*>(from) + k);
  }
}

template <class T, DType kFormat>
__global__ void __launch_bounds__(256, kBlocksPerSm) turned_kernel(const RopeBackward<T> f, const Sink<T> out) {
  extern __shared__ uint4 dynamic[];
  auto& room = *reinterpret_cast<TurnedBlock<T>*>(dynamic);
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, tiles = (f.units + 15) / 16;
  const int each = f.l.half / 2, units = each / 4;
  const int64_t row0 = blockIdx.y * int64_t(128);
  const float scale = out.read_scale();
  uint32_t amax = 0;
  typename RopeBackward<T>::Raw raw[4];
  const auto place_of = [&](int tile) {
    return tile * 16 + tx < f.units && tile < tiles ? f.place(tile * 16 + tx) : Place{};
  };
  const auto request = [&](const Place& p, int half) {
    const int64_t n0 = row0 + (half * 16 + ty) * 4;
#pragma unroll
    for (int r = 0; r < 4; ++r)
      if (n0 + r < out.rows) f.template load<true>(raw[r], n0 + r, p);
  };
  Place place = place_of(blockIdx.x);
  request(place, 0);
  keep_angles(room.angles, f, row0, out.rows);
  __syncthreads();
#pragma unroll 1
  for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
    const Place next = place_of(t + gridDim.x);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int group = half * 16 + ty;
      uint2 codes[2][4] = {};
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int64_t n = row0 + group * 4 + r;
        if (n >= out.rows) continue;
        float y[2][8];
        unpack(y[0], raw[r].a);
        unpack(y[1], raw[r].b);
        if (place.i >= 0) {
          float4 pairs[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) pairs[k] = room.angles[(group * 4 + r) * each + k * units + place.i / 8];
          float cos[8], sin[8];
          f.angles.split(cos, sin, pairs);
          rotate(y[0], y[1], cos, sin);
        }
#pragma unroll
        for (int k = 0; k < 2; ++k)
          if (place.count[k]) codes[k][r] = emit<kFormat, true>(out, n * out.cols + place.col[k], y[k], scale, amax);
      }
      if (half == 0) request(place, 1);
      else request(next, 0);
#pragma unroll
      for (int k = 0; k < 2; ++k) room.tile[k].put(codes[k], tx, group);
    }
    __syncthreads();
    if (row0 + 8 * tx < out.rows) {
#pragma unroll
      for (int k = 0; k < 2; ++k)
        for (int c = ty; c < 128; c += 16) {
          const int u = t * 16 + c / 8;
          if (u >= f.units) break;
          const Place p = f.place(u);
          if (p.count[k] == 0) continue;
          *reinterpret_cast<uint2*>(out.q_t + (p.col[k] + c % 8) * out.rows + row0 + 8 * tx) = room.tile[k].get(c, tx);
        }
    }
    __syncthreads();
    place = next;
  }
  block_amax(out.amax, amax);
  out.write_scale_inv();
}

// Blocks beside each other: as many as leave the card idle least at the end.
unsigned columns_of_blocks(int64_t tiles, int64_t row_tiles, int64_t at_once) {
  int64_t best = 1, least = INT64_MAX;
  for (int64_t x = 1; x <= tiles; ++x) {
    const int64_t cost = ceil_div(x * row_tiles, at_once) * (2 * ceil_div(tiles, x) + 1);  // and the angles
    if (cost < least) best = x, least = cost;
  }
  return unsigned(best);
}

template <class T>
void produce_turned(Stream& s, const RopeBackward<T>& f, const Sink<T>& out) {
  const int64_t row_tiles = ceil_div(out.rows, 128);
  const dim3 grid(
      columns_of_blocks(ceil_div(f.units, 16), row_tiles, int64_t(s.target().multiprocessors) * kBlocksPerSm),
      unsigned(row_tiles));
  CHECK(row_tiles <= 65535, out.rows, " rows are too many");
  const size_t shared = sizeof(TurnedBlock<T>);
  const auto kernel = out.format == DType::e5m2 ? turned_kernel<T, DType::e5m2> : turned_kernel<T, DType::e4m3>;
  allow_shared(kernel, shared);
  kernel<<<grid, 256, shared, raw(s)>>>(f, out);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void rope_backward(Stream& s, Operand d_out, Tensor d_in, const Rope& rope) {
  const Timed timed(s, Kernel::rope);
  if (d_out.plain.data == d_in.data && !d_out.q && !d_out.q_t && !d_out.slot.amax && !d_out.scale_inv) {
    rotate_in_place(s, d_in, rope, -1.f);
    return;
  }
  const Layout l = layout_of(rope, d_in);
  const int per_head = int(std::max(ceil_div(l.half, 8) + ceil_div(l.D - 2 * l.half, 16), ceil_div(l.D, 16)));
  visit<float, bf16>(d_in.dtype, [&]<class T>() {
    const Angles angles{rope.table.ptr<float>(), unsigned(rope.T), rope.first, -1.f, l.half};
    const RopeBackward<T> f{d_in.ptr<T>(), d_in.cols(), l, angles, per_head, per_head * l.heads};
    const Sink<T> out(d_out, d_in.rows(), d_in.cols());
    const bool fast = l.half % 8 == 0 && l.D % 8 == 0 && aligned({d_in.data});
    if (fast && out.fast() && out.q_t && l.half >= 8 && l.half <= kMaxPairs && s.target().compute_capability >= 90)
      produce_turned(s, f, out);
    else produce(s, f, out, fast);
  });
}

}  // namespace octet::BACKEND
