#pragma once
// Building blocks of the attention kernels for mma.sync: tiles in shared memory, fragments in registers, products.
//
// A tile has rows of kPitch elements: the head size, padded with zeros to a multiple of 64. Its 16-byte chunks are
// swizzled: chunk c of row r lies at place c ^ (r % 8), so that the eight rows that ldmatrix reads at once come from
// eight different groups of banks. A warp multiplies fragments of 16 x 16; a single address per lane (lane_address)
// serves all three of their roles:
//   A (rows, k)                 ldmatrix        -> a[0..3] of one mma
//   B (columns, k), "x y^T"     ldmatrix        -> (b[0], b[2]) and (b[1], b[3]) of two mma, 8 columns each
//   B (k, columns), "x y"       ldmatrix.trans  -> (b[0], b[1]) and (b[2], b[3])
// In an accumulator c of 16 x 8, lane l holds rows l/4 (c[0], c[1]) and l/4 + 8 (c[2], c[3]), columns 2 (l%4) and the
// next.
#include "ops/gpu/attention_common.cuh"

namespace octet::BACKEND {

template <int kD>
constexpr int kPitch = (kD + 63) / 64 * 64;
template <int kD>
constexpr int kRowBytes = 2 * kPitch<kD>;

// cp.async of 16 or 4 bytes; zeros where not valid.
template <int kBytes>
__device__ inline void copy_async(uint32_t dst, const void* src, bool valid) {
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(valid ? 16 : 0));
  else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dst), "l"(src), "r"(valid ? 4 : 0));
}
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;"); }
template <int kLeft>
__device__ inline void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft));
}

template <int kD>
__device__ inline uint32_t tile_offset(int row, int chunk) {
  return uint32_t(row * kRowBytes<kD> + ((chunk ^ (row & 7)) << 4));
}

// Rows 0..kRows-1 of a matrix into a tile; rows from `valid_rows` on and elements from D on become zero.
template <int kD, int kRows, int kThreads>
__device__ inline void load_tile(uint32_t tile, const bf16* src, int64_t stride, int64_t valid_rows, int D) {
  constexpr int kChunks = kPitch<kD> / 8, kStep = kThreads / kChunks;
  static_assert(kRows % kStep == 0);
  const int chunk = int(threadIdx.x) % kChunks, first = int(threadIdx.x) / kChunks;
  const bool inside = chunk * 8 < D;
  src += chunk * 8;
#pragma unroll
  for (int i = 0; i < kRows / kStep; ++i) {
    const int row = first + i * kStep;
    const bool valid = inside && row < valid_rows;
    copy_async<16>(tile + tile_offset<kD>(row, chunk), valid ? src + row * stride : src - chunk * 8, valid);
  }
}

template <int kD>
__device__ inline uint32_t lane_address(uint32_t tile, int first_row) {
  const int lane = int(threadIdx.x) % 32;
  return tile + tile_offset<kD>(first_row + lane % 16, lane / 16);
}
// The address of the fragment at row 16 i, element 16 k of a tile. In a swizzled row one moves by XOR.
template <int kD>
__device__ inline uint32_t fragment_at(uint32_t lane, int i, int k) {
  return (lane ^ uint32_t(k << 5)) + uint32_t(i * 16 * kRowBytes<kD>);
}
__device__ inline void load_fragment(uint32_t (&f)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
               : "r"(address));
}
__device__ inline void load_fragment_transposed(uint32_t (&f)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
               : "r"(address));
}
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_bf16(c, a[0], a[1], a[2], a[3], b0, b1);
}

// A warp's 16 kM rows of A: read from shared memory at each use, or kept in registers.
template <int kD, int kM, bool kInRegisters>
struct RowFragments {
  uint32_t lane;
  __device__ RowFragments(uint32_t tile, int first_row) : lane(lane_address<kD>(tile, first_row)) {}
  __device__ void load() {}
  __device__ void get(uint32_t (&a)[kM][4], int k) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) load_fragment(a[m], fragment_at<kD>(lane, m, k));
  }
};
template <int kD, int kM>
struct RowFragments<kD, kM, true> {
  uint32_t lane, kept[kD / 16][kM][4];
  __device__ RowFragments(uint32_t tile, int first_row) : lane(lane_address<kD>(tile, first_row)) {}
  __device__ void load() {
#pragma unroll
    for (int k = 0; k < kD / 16; ++k)
#pragma unroll
      for (int m = 0; m < kM; ++m) load_fragment(kept[k][m], fragment_at<kD>(lane, m, k));
  }
  __device__ void get(uint32_t (&a)[kM][4], int k) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m][i] = kept[k][m][i];
  }
};

// c (16 kM, 8 kN) = x y^T;  y: 8 kN rows of a tile
template <int kD, int kM, int kN, class X>
__device__ inline void product_nt(float (&c)[kM][kN][4], const X& x, uint32_t y_lane) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0;
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    uint32_t a[kM][4];
    x.get(a, k);
#pragma unroll
    for (int n = 0; n < kN / 2; ++n) {
      uint32_t b[4];
      load_fragment(b, fragment_at<kD>(y_lane, n, k));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply(c[m][2 * n], a[m], b[0], b[2]);
        multiply(c[m][2 * n + 1], a[m], b[1], b[3]);
      }
    }
  }
}

// c (16 kM, 8 kN) += p y;  p (16 kM, 8 kK): accumulators, rounded to bf16;  y: 8 kK rows of a tile, from element
// 16 * first on
template <int kD, int kM, int kK, int kN>
__device__ inline void product_nn(float (&c)[kM][kN][4], const float (&p)[kM][kK][4], uint32_t y_lane, int first) {
#pragma unroll
  for (int k = 0; k < kK / 2; ++k) {
    uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      a[m][0] = pack_bf16(p[m][2 * k][0], p[m][2 * k][1]);
      a[m][1] = pack_bf16(p[m][2 * k][2], p[m][2 * k][3]);
      a[m][2] = pack_bf16(p[m][2 * k + 1][0], p[m][2 * k + 1][1]);
      a[m][3] = pack_bf16(p[m][2 * k + 1][2], p[m][2 * k + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < kN / 2; ++n) {
      uint32_t b[4];
      load_fragment_transposed(b, fragment_at<kD>(y_lane, k, first + n));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply(c[m][2 * n], a[m], b[0], b[1]);
        multiply(c[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// y[row] = c * factor(m, half) for the warp's 16 kM rows, from chunk first_chunk on. The values pass through `tile`,
// whose rows only this warp uses, so that each lane stores 16 bytes. row0: the warp's first row in the tile and in y.
template <int kD, int kM, int kN, class Factor>
__device__ inline void store_rows(const float (&c)[kM][kN][4], Factor&& factor, uint32_t tile, int row0, bf16* y,
                                  int64_t stride, int64_t valid_rows, int D, int first_chunk = 0) {
  const int lane = int(threadIdx.x) % 32;
  __syncwarp();  // every lane is done with what was there
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + m * 16 + half * 8 + lane / 4;
      const float f = factor(m, half);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint32_t v = pack_bf16(c[m][n][2 * half] * f, c[m][n][2 * half + 1] * f);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile + tile_offset<kD>(row, n) + 4 * (lane % 4)), "r"(v)
                     : "memory");
      }
    }
  __syncwarp();
  for (int i = lane; i < kM * 16 * kN; i += 32) {
    const int row = row0 + i / kN, chunk = i % kN;
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(tile + tile_offset<kD>(row, chunk))
                 : "memory");
    if (row < valid_rows && (first_chunk + chunk) * 8 < D)
      *reinterpret_cast<uint4*>(y + row * stride + (first_chunk + chunk) * 8) = v;
  }
  __syncwarp();
}

// Sets masked scores of a tile to `hidden`. The rows of the tile are queries, or keys if it is transposed.
template <Rows kRows, int kM, int kN>
__device__ void apply(const Mask& mask, float (&s)[kM][kN][4], int b, int row0, int column0, float hidden = -INFINITY) {
  const int lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Span seen = mask.columns_of<kRows>(b, row0 + m * 16 + half * 8 + lane / 4);
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (!seen.contains(column0 + n * 8 + 2 * (lane % 4) + i)) s[m][n][2 * half + i] = hidden;
    }
}
}  // namespace octet::BACKEND
