#pragma once
// Tensor maps: TMA's descriptors of tensors in global memory, which it copies in boxes. Lines of a box, of at
// most 128 bytes, get the 128-byte swizzle that wgmma reads (wgmma.cuh). Outside the tensor, loads give zeros
// and stores write nothing.
#include <cuda.h>

#include <array>

#include "device/gpu.h"

namespace octet::BACKEND {

inline CUtensorMapDataType copied_as(DType t) {
  return is_fp8(t)          ? CU_TENSOR_MAP_DATA_TYPE_UINT8
         : t == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                            : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

// Dimensions and pitches from the innermost outwards; the innermost pitch is one element, and is left out. The base
// address and the pitches are multiples of 16 bytes. block: the size of a box.
template <size_t kRank>
CUtensorMap tensor_map(DType type, const void* base, const std::array<int64_t, kRank>& extent,
                       const std::array<int64_t, kRank - 1>& pitch_bytes, const std::array<int, kRank>& block) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status{};
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status));
    if (status != cudaDriverEntryPointSuccess) throw SystemError("the CUDA driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  std::array<cuuint64_t, kRank> extents;
  std::array<cuuint64_t, kRank - 1> pitches;
  std::array<cuuint32_t, kRank> blocks, steps;
  for (size_t i = 0; i < kRank; ++i) extents[i] = cuuint64_t(extent[i]), blocks[i] = cuuint32_t(block[i]), steps[i] = 1;
  for (size_t i = 0; i + 1 < kRank; ++i) pitches[i] = cuuint64_t(pitch_bytes[i]);
  CUtensorMap map{};
  const CUresult e = encode(&map, copied_as(type), kRank, const_cast<void*>(base), extents.data(), pitches.data(),
                            blocks.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(e == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error ", int(e), " for ", name_of(type), " of rank ", kRank,
        ", innermost ", extent[0], " x ", extent[1]);
  return map;
}

}  // namespace octet::BACKEND
