#pragma once
// Hopper's wgmma: a warpgroup (128 threads) multiplies tiles in shared memory, asynchronously; the left factor may be
// in registers instead.                                                                                    PTX ISA 8.5
//
// The accumulator d (64,N) takes N / 2 registers a thread: d[j * 4 + i] is row lane / 4 + (i / 2) * 8 of the warp's 16,
// column j * 8 + (lane % 4) * 2 + i % 2. A left factor (64,16) in registers has the layout of 16 such columns, rounded
// to bf16 and packed in pairs.
#include <cstdint>

namespace octet::BACKEND::hopper {

// wgmma_fence: needed before a wgmma that reads or accumulates into registers written since the last one. wgmma_commit
// closes a group of wgmmas; wgmma_wait<n> waits until all but the last n groups are complete.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accesses of these registers across this point: it does not know that a wgmma still
// writes them after its instruction was issued. (CUTLASS: warpgroup_fence_operand.)
template <int kCount>
__device__ inline void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Tiles in shared memory are made of blocks: lines of 128 bytes with the 128-byte swizzle, 64 lines a block unless
// block_bytes says otherwise.
//   K-major    a line holds 128 bytes of one row (of M or N) along the contracted axis.
//   MN-major   a line holds 64 bf16 rows at one index of the contracted axis; the next 64 rows are in the next block.
//
// Fields of the matrix descriptor; addresses and offsets are in units of 16 bytes:
//   bits 0-13    start address
//   bits 16-29   leading dimension byte offset: from 64 rows to the next 64 (MN-major); unused when K-major: 1
//   bits 32-45   stride byte offset: from eight lines to the next eight, 1024 bytes
//   bits 62-63   swizzle mode: 1 is 128 bytes
constexpr int kBlockBytes = 8192;  // of 64 lines
__device__ inline uint64_t descriptor(uint32_t address, bool mn_major, int block_bytes = kBlockBytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightLines = uint64_t(1024 >> 4) << 32;
  const uint64_t next_block = mn_major ? uint64_t(block_bytes >> 4) << 16 : uint64_t{1} << 16;
  return uint64_t((address & 0x3FFFF) >> 4) | next_block | kEightLines | kSwizzle128;
}
// What a step of 16 bf16 (one wgmma's k) along the contracted axis adds to a descriptor: 32 bytes of a K-major line,
// which has four such steps, or 16 MN-major lines.
template <bool kMnMajor>
constexpr uint64_t kStepOf16 = (kMnMajor ? 2048 : 32) >> 4;
__device__ inline uint64_t advanced(uint64_t descriptor, int by) {  // only the low word holds the address
  return (descriptor & ~uint64_t{0xffffffff}) | uint32_t(uint32_t(descriptor) + uint32_t(by));
}
// An operand of zeros: with both offsets 0, every group of eight lines is the same 1 KiB.
__device__ inline uint64_t zero_descriptor(uint32_t address) {
  return uint64_t((address & 0x3FFFF) >> 4) | uint64_t{1} << 62;
}
// Makes this thread's ordinary stores to shared memory visible to wgmma and TMA (the async proxy),
// once a barrier has followed.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// clang-format off
#define OCTET_ACC32(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define OCTET_ACC64(d) OCTET_ACC32(d), \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define OCTET_ACC96(d) OCTET_ACC64(d), \
  "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
  "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
  "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define OCTET_ACC128(d) OCTET_ACC96(d), \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), \
  "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), \
  "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
  "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
#define OCTET_REG32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OCTET_REG64 OCTET_REG32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OCTET_REG96 OCTET_REG64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OCTET_REG128 OCTET_REG96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define OCTET_WGMMA_SS(N, R, A, B, ADD, MN_MAJOR_A, MN_MAJOR_B) \
  template <bool kMnMajorA, bool kMnMajorB> \
  __device__ inline void wgmma_bf16(float (&d)[R], uint64_t a, uint64_t b, int add = 1) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" OCTET_REG##R "}, " \
                 A ", " B ", p, 1, 1, " MN_MAJOR_A ", " MN_MAJOR_B ";\n}" \
                 : OCTET_ACC##R(d) : "l"(a), "l"(b), "r"(add), "n"(kMnMajorA), "n"(kMnMajorB)); \
  }
#define OCTET_WGMMA_RS(N, R, A, B, ADD, MN_MAJOR_B) \
  template <bool kMnMajorB> \
  __device__ inline void wgmma_bf16(float (&d)[R], const uint32_t (&a)[4], uint64_t b, int add = 1) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" OCTET_REG##R "}, {" \
                 A "}, " B ", p, 1, 1, " MN_MAJOR_B ";\n}" \
                 : OCTET_ACC##R(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kMnMajorB)); \
  }
// d (64,N) = a (64,16) b (N,16)^T [+ d]:  wgmma_bf16<kMnMajorA, kMnMajorB>(d, a, b, add) with both operands in shared
// memory (SS), wgmma_bf16<kMnMajorB>(d, a, b, add) with a in registers (RS). N is 64, 128, 192 or 256 by the size of d.
OCTET_WGMMA_SS(64, 32, "%32", "%33", "%34", "%35", "%36")
OCTET_WGMMA_SS(128, 64, "%64", "%65", "%66", "%67", "%68")
OCTET_WGMMA_SS(192, 96, "%96", "%97", "%98", "%99", "%100")
OCTET_WGMMA_SS(256, 128, "%128", "%129", "%130", "%131", "%132")
OCTET_WGMMA_RS(64, 32, "%32, %33, %34, %35", "%36", "%37", "%38")
OCTET_WGMMA_RS(128, 64, "%64, %65, %66, %67", "%68", "%69", "%70")
OCTET_WGMMA_RS(192, 96, "%96, %97, %98, %99", "%100", "%101", "%102")
OCTET_WGMMA_RS(256, 128, "%128, %129, %130, %131", "%132", "%133", "%134")
// clang-format on

// d (64,256) += a (64,32) b (256,32)^T;  a is E5M2 or E4M3, b is E4M3; FP8 operands must be K-major
template <bool kE5m2A>
__device__ inline void wgmma_fp8(float (&d)[128], uint64_t a, uint64_t b) {
  if constexpr (kE5m2A)
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k32.f32.e5m2.e4m3 {" OCTET_REG128 "}, %128, %129, 1, 1, 1;"
                 : OCTET_ACC128(d)
                 : "l"(a), "l"(b));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" OCTET_REG128 "}, %128, %129, 1, 1, 1;"
                 : OCTET_ACC128(d)
                 : "l"(a), "l"(b));
}
// d (64,128) = a (64,32) b (128,32)^T [+ d]
template <bool kE5m2A>
__device__ inline void wgmma_fp8(float (&d)[64], uint64_t a, uint64_t b, int add) {
  if constexpr (kE5m2A)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e5m2.e4m3 {" OCTET_REG64 "}, %64, %65, p, 1, 1;\n}"
        : OCTET_ACC64(d)
        : "l"(a), "l"(b), "r"(add));
  else
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" OCTET_REG64 "}, %64, %65, p, 1, 1;\n}"
        : OCTET_ACC64(d)
        : "l"(a), "l"(b), "r"(add));
}
#undef OCTET_ACC32
#undef OCTET_REG32
#undef OCTET_ACC64
#undef OCTET_REG64
#undef OCTET_ACC96
#undef OCTET_REG96
#undef OCTET_ACC128
#undef OCTET_REG128
#undef OCTET_WGMMA_SS
#undef OCTET_WGMMA_RS

}  // namespace octet::BACKEND::hopper
