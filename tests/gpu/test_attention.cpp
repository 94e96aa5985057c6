// Attention on the GPU, by our kernels and by cuDNN, against its definition in double precision.
#define BACKEND gpu
#include "gpu/attention_lab.h"

namespace octet::gpu {
namespace {

TEST_F(GpuAttention, Bf16IsItsDefinitionAndRepeats) {
  Gpu gpu(AttentionKind::native);
  check(gpu, shapes(), DType::bf16);
}
// Small enough for compute-sanitizer: the kernels of Hopper, then those of mma.sync and of fp32.
std::deque<Packed> few_tiles(std::initializer_list<int64_t> head_sizes) {
  std::deque<Packed> few;
  for (const int64_t D : head_sizes)
    for (const int64_t window : {0, 70})
      for (const int64_t longest_document : {0, 120})
        few.emplace_back(shape({.H = 4, .G = 2, .D = D}, 2, 270, window), longest_document, 1);
  return few;
}
TEST_F(GpuAttention, Bf16OfFewTiles) {
  Gpu gpu(AttentionKind::native);
  check(gpu, few_tiles({64, 128}), DType::bf16);
}
TEST_F(GpuAttention, OtherFormsOfFewTiles) {
  Gpu gpu(AttentionKind::native);
  check(gpu, few_tiles({48}), DType::bf16);
  check(gpu, few_tiles({48, 64}), DType::f32);
}
TEST_F(GpuAttention, Bf16WithAWindow) {
  Gpu gpu(AttentionKind::cudnn);  // cuDNN is not asked for windows
  check(gpu, windowed(), DType::bf16);
}
// Queries attend to keys of their own document; cuDNN is not asked for that either.
TEST_F(GpuAttention, WithinDocumentsIsItsDefinitionAndRepeats) {
  Gpu gpu(AttentionKind::cudnn);
  for (const DType t : {DType::bf16, DType::f32}) check(gpu, packed(), t);
}
TEST_F(GpuAttention, ADocumentThatFillsItsSequenceHasTheSameBits) {
  Gpu gpu(AttentionKind::native);
  for (const int64_t D : {64, 80, 128})
    for (const DType t : {DType::bf16, DType::f32}) {
      const Attention a = shape({.H = 4, .G = 2, .D = D}, 2, 333);
      std::vector<int32_t> all(size_t(4 * a.T));
      std::fill(all.begin() + 2 * a.T, all.end(), int32_t(a.T));
      Attention within = a;
      within.documents = {all.data(), DType::i32, {2, a.B, a.T}};
      const Doubles qkv = inputs(size_t(a.B * a.T * a.heads.width()), 1, t);
      const Doubles d_o = inputs(size_t(a.B * a.T * a.heads.H * D), 2, t);
      const Result one = gpu.run(a, t, qkv, d_o), other = gpu.run(within, t, qkv, d_o);
      EXPECT_TRUE(one.o == other.o && one.lse == other.lse && one.dqkv == other.dqkv) << name(a) << " " << name_of(t);
    }
}
template <class Kernel>
void expect_forward(Gpu& gpu, Kernel kernel, const Attention& a) {  // in bf16
  const Doubles qkv = inputs(size_t(a.B * a.T * a.heads.width()), 1, DType::bf16);
  const Result want = Reference(a, qkv, Doubles(size_t(a.B * a.T * a.heads.H * a.heads.D))).result();
  const Result got = gpu.forward(kernel, a, qkv);
  EXPECT_LE(error(got.o, want.o), 4e-3) << name(a);
  EXPECT_LE(error(got.lse, want.lse), 2e-6) << name(a);
}
// The spread of these scores is in the hundreds, so that maxima grow from tile to tile and sums are rescaled each time.
TEST_F(GpuAttention, ForwardOfPeakedScores) {
  Gpu gpu(AttentionKind::native);
  for (int64_t D : {64, 80, 128})
    for (int64_t window : {0, 300}) {
      Attention a = shape({.H = 4, .G = 2, .D = D}, 1, 1111, window);
      a.scale = 5;
      expect_forward(gpu, native_attention_forward, a);
      expect_forward(gpu, native_attention_forward, Packed(a, 400, 1));
    }
}
// On Hopper only other head sizes run by mma.sync; on other cards these do, too.
TEST_F(GpuAttention, ForwardWithoutHoppersKernel) {
  Gpu gpu(AttentionKind::native);
  for (int64_t D : {64, 128})
    for (int64_t window : {0, 100})
      for (int64_t longest_document : {0, 150})
        expect_forward(gpu, attention_forward_bf16,
                       Packed(shape({.H = 4, .G = 2, .D = D}, 2, 333, window), longest_document, 1));
}
TEST_F(GpuAttention, BackwardWithoutHoppersKernels) {
  Gpu gpu(AttentionKind::native);
  for (int64_t D : {64, 128})
    for (int64_t window : {0, 100})
      for (int64_t longest_document : {0, 150}) {
        const Packed a(shape({.H = 4, .G = 2, .D = D}, 2, 333, window), longest_document, 1);
        const Doubles qkv = inputs(size_t(2 * 333 * 8 * D), 1, DType::bf16);
        const Doubles d_o = inputs(size_t(2 * 333 * 4 * D), 2, DType::bf16);
        expect_near(gpu.backward_by_mma_sync(a, qkv, d_o), Reference(a, qkv, d_o).result(), a, DType::bf16);
      }
}
// With the forms of the kernels that an A100 takes, and those for cards with the least shared memory (L40S).
TEST_F(GpuAttention, OfCardsWithLessSharedMemoryIsItsDefinition) {
  for (int capability : {80, 86}) {
    SCOPED_TRACE(capability);
    Gpu gpu(AttentionKind::native, true, capability);
    std::deque<Packed> some;
    for (int64_t D : {64, 96, 128, 136, 256})
      for (int64_t window : {0, 70})
        for (int64_t longest_document : {0, 150})
          some.emplace_back(shape({.H = 4, .G = 2, .D = D}, 2, 333, window), longest_document, 1);
    for (int64_t D : {128, 256}) some.emplace_back(shape({.H = 3, .G = 3, .D = D, .interleaved = true}, 2, 65), 0, 1);
    for (const DType t : {DType::bf16, DType::f32}) check(gpu, some, t);
  }
}
TEST_F(GpuAttention, F32IsItsDefinitionAndRepeats) {
  Gpu gpu(AttentionKind::cudnn);  // nor for f32
  check(gpu, shapes(), DType::f32);
  check(gpu, windowed(), DType::f32);
}
TEST(Cudnn, OfOldVersionsComputesNoGradientsThatWouldBeWrong) {
  EXPECT_NE(wrong_backward(90100, 4096, false), "");
  EXPECT_NE(wrong_backward(90501, 4096, false), "");
  EXPECT_EQ(wrong_backward(90501, 4096, true), "");
  EXPECT_EQ(wrong_backward(90600, 4096, false), "");
  EXPECT_NE(wrong_backward(91501, 1000, true), "");
  EXPECT_EQ(wrong_backward(91600, 1000, false), "");
}
TEST_F(GpuAttention, CudnnIsItsDefinitionAndRepeats) {
  Gpu gpu(AttentionKind::cudnn);
  if (!cudnn_has_forward(gpu.device(), shape({.H = 4, .G = 2, .D = 64}, 2, 333))) GTEST_SKIP() << "no cuDNN";
  check(gpu, shapes(), DType::bf16);
}
TEST_F(GpuAttention, CudnnInAnyOrder) {
  Gpu gpu(AttentionKind::cudnn, false);
  if (!cudnn_has_forward(gpu.device(), shape({.H = 4, .G = 2, .D = 64}, 2, 333))) GTEST_SKIP() << "no cuDNN";
  check(gpu, shapes(), DType::bf16, false);
}

// Our forward and cuDNN's backward, or ours where bits must repeat, go together.
TEST_F(GpuAttention, TheFasterOfBothIsItsDefinition) {
  for (bool deterministic : {false, true}) {
    Gpu gpu(AttentionKind::automatic, deterministic);
    check(gpu, shapes(), DType::bf16, deterministic);
  }
}

// A sequence long enough that the deterministic form is cut into slices; the whole against our own kernels.
TEST_F(GpuAttention, SlicesOfCudnnCoverTheBatch) {
  Gpu own(AttentionKind::native), gpu(AttentionKind::cudnn);
  const Attention a = shape({.H = 4, .G = 2, .D = 64}, 3, 12000);
  ASSERT_LT(attention_slice(a).B * attention_slice(a).G, a.B * a.heads.G);
  if (!cudnn_has_backward(gpu.device(), a)) GTEST_SKIP() << "no cuDNN";
  const Doubles qkv = inputs(size_t(a.B * a.T * a.heads.width()), 1, DType::bf16);
  const Doubles d_o = inputs(size_t(a.B * a.T * a.heads.H * a.heads.D), 2, DType::bf16);
  expect_near(gpu.run(a, DType::bf16, qkv, d_o), own.run(a, DType::bf16, qkv, d_o), a, DType::bf16);
}

// The statistics of these slices do not begin at 16 bytes, as cuDNN is told that they do.
TEST_F(GpuAttention, SlicesOfAnOddLengthCoverTheBatchToo) {
  Gpu own(AttentionKind::native), gpu(AttentionKind::cudnn);
  const Attention a = shape({.H = 3, .G = 3, .D = 64}, 1, 16385);
  ASSERT_EQ(attention_slice(a).G, 1);
  const Doubles qkv = inputs(size_t(a.B * a.T * a.heads.width()), 1, DType::bf16);
  const Doubles d_o = inputs(size_t(a.B * a.T * a.heads.H * a.heads.D), 2, DType::bf16);
  expect_near(gpu.run(a, DType::bf16, qkv, d_o), own.run(a, DType::bf16, qkv, d_o), a, DType::bf16);
}

// Plans are kept for some shapes: the first ones are made again.
TEST_F(GpuAttention, CudnnOfMoreShapesThanPlansAreKept) {
  Gpu gpu(AttentionKind::cudnn);
  if (!cudnn_has_forward(gpu.device(), shape({.H = 4, .G = 2, .D = 64}, 2, 333))) GTEST_SKIP() << "no cuDNN";
  for (int64_t T = 64; T < 64 + 35; ++T)
    EXPECT_TRUE(cudnn_has_forward(gpu.device(), shape({.H = 2, .G = 2, .D = 64}, 1, T)));
  check(gpu, {shape({.H = 4, .G = 2, .D = 64}, 2, 333), shape({.H = 2, .G = 2, .D = 64}, 1, 64)}, DType::bf16);
}

TEST_F(GpuAttention, ManySequencesAndManyHeadsOfOneKey) {
  Gpu gpu(AttentionKind::native);
  const std::vector<Attention> some{shape({.H = 16, .G = 16, .D = 8}, 4096, 4), shape({.H = 64, .G = 1, .D = 8}, 1, 1)};
  for (const DType t : {DType::bf16, DType::f32}) check(gpu, some, t);
}

TEST_F(GpuAttention, HeadSizesThatNobodyHasAreRefused) {
  Gpu gpu(AttentionKind::native);
  EXPECT_THROW(gpu.run(shape({.H = 1, .G = 1, .D = 20}, 1, 8), DType::bf16, Doubles(8 * 60), Doubles(8 * 20)), Error);
  EXPECT_THROW(gpu.run(shape({.H = 1, .G = 1, .D = 264}, 1, 8), DType::bf16, Doubles(8 * 792), Doubles(8 * 264)),
               Error);
}

}  // namespace
}  // namespace octet::gpu
