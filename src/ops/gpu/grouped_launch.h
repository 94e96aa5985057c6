#pragma once
// Between grouped.cu and the kernels of grouped_gemm, which are compiled by kind of input.
#include <cuda.h>

#include "device/gpu.h"

namespace octet::BACKEND::grouped {

constexpr int kMost = 64;  // experts of a launch

enum class Store { bf16, f32, add_bf16, add_f32 };

struct Params {
  CUtensorMap a, b;                                        // of blocks (wgmma.cuh); b: of sums
  CUtensorMap expert[kMost];                               // rows: each one's b; sums: each one's d, where it is fp32
  const float *a_scale[kMost] = {}, *b_scale[kMost] = {};  // FP8
  void* d[kMost] = {};                                     // rows: d[0] alone
  const int32_t* offset = nullptr;                         // (experts + 1)
  // rows: M is how many d has if this launch is to clear the last ones, else 0. sums: no K.
  int experts = 0, M = 0, N = 0, K = 0;
  int rounds = 1;  // grouped_tiles.cuh
  Store store = Store::bf16;
};

// d[r,:] = a[r,:] b_e^T; turned: b stands as (K,N)
void launch_rows_bf16(Stream&, const Params&, bool turned);
// d_e += a_e b_e^T of a (R,M) and b (R,N)
void launch_sums_bf16(Stream&, const Params&);
// The same of FP8, all contiguous along the contracted axis. a: its format; b is e4m3. fast: no split accumulation.
void launch_rows_fp8(Stream&, const Params&, DType a, bool fast);
void launch_sums_fp8(Stream&, const Params&, DType a, bool fast);

}  // namespace octet::BACKEND::grouped
