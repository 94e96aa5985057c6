#pragma once
// Which cards run the code that a build holds, and how much shared memory they have.
#include <cstdint>
#include <string>

#include "base/check.h"

namespace octet::BACKEND {

// The code of this program that the card runs: compiled for `architecture` (90 for Hopper), with Hopper's own
// instructions (sm_90a) or without.
struct GpuCode {
  int architecture = 0;
  bool hopper = false;
};

// Why a card cannot run this code correctly, or "". Hopper's kernels are empty unless compiled for sm_90a, and kernels
// launched by launch_pdl (ops/gpu/launch.cuh) do not wait for each other if compiled for an older card: both would give
// wrong numbers silently.
inline std::string unfit(int compute_capability, const GpuCode& code) {
  const auto version = [](int v) { return concat(v / 10, ".", v % 10); };
  if (code.architecture == 0) return concat("this program holds no code for it");
  if (compute_capability / 10 == 9 && !code.hopper)
    return concat("this program's code for it was built for ", version(code.architecture), " without the a of 90a");
  if (compute_capability >= 90 && code.architecture < 90)
    return concat("this program holds only code for older cards, of ", version(code.architecture));
  return "";
}
// What to name in OCTET_CUDA_ARCHITECTURES for a card.
inline std::string architecture_for(int compute_capability) {
  return concat(compute_capability, compute_capability / 10 == 9 ? "a-real" : "-real");
}

// Largest shared memory of a thread block, in bytes. Unknown cards are taken to have the least.
//                                                  CUDA C++ Programming Guide, technical specifications by capability
inline int64_t shared_room(int compute_capability) {
  switch (compute_capability) {
    case 80:
    case 87:
      return 163 << 10;
    case 90:
    case 100:
    case 103:
    case 110:
      return 227 << 10;
    default:  // 8.6, 8.9, 12.x
      return 99 << 10;
  }
}

}  // namespace octet::BACKEND
