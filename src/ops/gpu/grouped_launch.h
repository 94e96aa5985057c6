#pragma once
// What grouped.cu launches: instances of the kernel, compiled in several files.
#include <cuda.h>

#include "device/gpu.h"

namespace octet::BACKEND::grouped {

constexpr int kMost = 64;  // experts in a launch

enum class Store { bf16, f32, add_bf16, add_f32 };
constexpr bool adds(Store s) { return s == Store::add_bf16 || s == Store::add_f32; }

// "rows" is grouped_gemm, which computes rows of d; "sums" is grouped_gradient, which sums over rows.
struct Params {
  CUtensorMap a, b;           // in boxes (wgmma.cuh's blocks); b: only sums
  CUtensorMap expert[kMost];  // rows: each expert's b; sums: each expert's d, if it is fp32
  const float *a_scale[kMost] = {}, *b_scale[kMost] = {};  // FP8
  void* d[kMost] = {};                                     // rows: only d[0]
  const int32_t* offset = nullptr;                         // (experts + 1)
  // rows: M is the number of d's rows if this launch also clears the unused ones, else 0. sums: K is not used.
  int experts = 0, M = 0, N = 0, K = 0;
  int rounds = 1;  // grouped_tiles.cuh
  Store store = Store::bf16;
};

// d[r,:] = a[r,:] b_e^T; mn_major: b is stored as (K,N)
void launch_rows_bf16(Stream&, const Params&, bool mn_major);
// d_e += a_e b_e^T of a (R,M) and b (R,N); d_e = it, if the store does not add
void launch_sums_bf16(Stream&, const Params&);
// The same of FP8, all contiguous along the contracted axis. a: its format; b is e4m3. fast: no split accumulation.
void launch_rows_fp8(Stream&, const Params&, DType a, bool fast);
void launch_sums_fp8(Stream&, const Params&, DType a, bool fast);

}  // namespace octet::BACKEND::grouped
