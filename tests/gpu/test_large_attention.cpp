// Attention and products of more than 2^32 elements: what the last sequence gets is what it gets alone.
#define BACKEND gpu
#include <gtest/gtest.h>

#include "gpu/machine.h"
#include "ops/decode.h"
#include "ops/grouped.h"
#include "ops/workspace.h"

namespace octet::gpu {
namespace {

class LargeAttention : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_available()) GTEST_SKIP() << "no GPU";
    const Device d({});
    if (d.total_bytes() - d.used_bytes() < size_t{40} << 30) GTEST_SKIP() << "these tensors take 36 GiB";
  }
  static std::vector<char> bits(Machine& m, Tensor t) {
    std::vector<char> b(t.bytes());
    copy_to_host(m.stream, b.data(), t.data, b.size());
    m.stream.synchronize();
    return b;
  }
};

struct Tensors {
  Tensor qkv, o, lse, d_o, dqkv;
};
Tensors run(Machine& m, const Attention& a, Tensor qkv, Tensor d_o) {
  const Heads& h = a.heads;
  const Target& t = m.device.target();
  const Tensor o = m.tensor(DType::bf16, d_o.shape), lse = m.tensor(DType::f32, {a.B, h.H, a.T});
  const Tensor dqkv = m.tensor(DType::bf16, qkv.shape);
  attention_forward(m.stream, o, lse, qkv, a,
                    m.tensor(DType::e4m3, {attention_forward_workspace(t, a, DType::bf16) + 1}));
  const Tensor workspace = m.tensor(DType::e4m3, {attention_backward_workspace(t, a, DType::bf16) + 1});
  attention_backward(m.stream, {.dqkv = dqkv, .d_o = d_o, .o = o, .lse = lse, .qkv = qkv, .workspace = workspace}, a);
  return {qkv, o, lse, d_o, dqkv};
}

// D 64: Hopper's kernels; 96: those of mma.sync. Of cuDNN, which sums dq in no fixed order, the largest that it is
// given; what is larger goes to ours.
TEST_F(LargeAttention, OfTheLastSequenceIsItsOwn) {
  struct Case {
    AttentionKind kind;
    int64_t D, elements;
  };
  constexpr int64_t kBeyond = (int64_t{1} << 32) + (int64_t{1} << 26), kCudnns = int64_t{1} << 30;
  for (const auto& [kind, D, elements] :
       {Case{AttentionKind::native, 64, kBeyond}, Case{AttentionKind::native, 96, kBeyond},
        Case{AttentionKind::cudnn, 64, kBeyond}, Case{AttentionKind::cudnn, 64, kCudnns},
        Case{AttentionKind::cudnn, 96, kCudnns}}) {
    Machine m({.deterministic = kind == AttentionKind::native, .target = {.attention = kind}});
    const Heads heads{.H = 6144 / D, .G = 6144 / D, .D = D};
    const int64_t T = 1024, B = (elements - 1) / (T * heads.width());
    const Attention a{.heads = heads, .B = B, .T = T, .scale = 0.1}, one{.heads = heads, .B = 1, .T = T, .scale = 0.1};
    const Tensor qkv = m.tensor(DType::bf16, {B * T, heads.width()}), d_o = m.tensor(DType::bf16, {B * T, 6144});
    init_normal(m.stream, qkv, 0, 1, 1, 1, 0), init_normal(m.stream, d_o, 0, 1, 1, 2, 0);
    const Tensors all = run(m, a, qkv, d_o);
    const auto last = [&](Tensor t) { return t.row_range(t.rows() - T, T); };
    const Tensors alone = run(m, one, last(qkv), last(d_o));
    const double o = relative_error(m.download(last(all.o)), m.download(alone.o)),
                 d = relative_error(m.download(last(all.dqkv)), m.download(alone.dqkv));
    const double most = kind == AttentionKind::native ? 0 : 1e-2;  // alone is cuDNN's too
    EXPECT_LE(o, most) << D << ' ' << elements;
    EXPECT_LE(d, most) << D << ' ' << elements;
    EXPECT_LE(relative_error(m.download(all.lse.part((B - 1) * heads.H * T, {heads.H * T})), m.download(alone.lse)),
              most);
  }
}

TEST_F(LargeAttention, OfALargeCache) {
  Machine m;
  Stream& s = m.stream;
  const Heads h{.H = 64, .G = 32, .D = 128};
  const int64_t B = 9, S = 131072;  // 2^32 elements and more, the last sequence behind them
  const KvRows kv{m.tensor(DType::bf16, {B, h.G, S, h.D}), m.tensor(DType::bf16, {B, h.G, S, h.D})};
  init_normal(s, kv.k, 0, 1, 1, 1, 0), init_normal(s, kv.v, 0, 1, 1, 2, 0);
  const Tensor qkv = m.tensor(DType::bf16, {B, h.width()}), position = m.tensor(DType::i32, {B});
  init_normal(s, qkv, 0, 1, 1, 3, 0);
  const std::vector<int32_t> at(size_t(B), int32_t(S) - 2);
  copy_to_device(s, position.data, at.data(), position.bytes());
  const auto attend = [&](int64_t first, int64_t count) {
    const auto some = [&](Tensor t) { return t.part(first * (t.numel() / B), {count, t.shape[1], S, h.D}); };
    const Tensor workspace = m.tensor(DType::e4m3, {attention_decode_workspace(m.device.target(), h, count)}),
                 o = m.tensor(DType::bf16, {count, h.H * h.D});
    fill_zero(s, workspace);
    kv_append(s, {.kv = {some(kv.k), some(kv.v)}, .heads = h, .start = position.part(first, {count})},
              qkv.row_range(first, count));
    attention_decode(s, o, qkv.row_range(first, count),
                     {.kv = {some(kv.k), some(kv.v)},
                      .heads = h,
                      .position = position.part(first, {count}),
                      .scale = 0.1,
                      .workspace = workspace});
    return m.download(o.row_range(count - 1, 1));
  };
  EXPECT_LE(relative_error(attend(0, B), attend(B - 1, 1)), 4e-3);
  const Tensor row = kv.k.part(kv.k.numel() - 2 * h.D, {h.D}),
               key = qkv.part((B - 1) * h.width() + h.k(h.G - 1), {h.D});
  EXPECT_EQ(bits(m, row), bits(m, key));
}

TEST_F(LargeAttention, GroupedProductsAndThoseOfFewRows) {
  Machine m;
  Stream& s = m.stream;
  const int64_t R = 131072, N = 33024, K = 64;  // d has more than 2^32 elements
  const Tensor a = m.tensor(DType::bf16, {R, K}), d = m.tensor(DType::bf16, {R, N}), offset = m.tensor(DType::i32, {4});
  init_normal(s, a, 1, 0, 0, 0, 0);
  const std::vector<int32_t> begins{0, 64, int32_t(R) - 96, int32_t(R) - 32};
  copy_to_device(s, offset.data, begins.data(), offset.bytes());
  std::vector<Factor> b;
  for (int e = 1; e <= 3; ++e) {
    b.push_back({m.tensor(DType::bf16, {N, K})});
    init_normal(s, b.back().t, e, 0, 0, 0, 0);
  }
  fill_byte(s, d.data, 0xff, d.bytes());
  const ExpertRows rows{.offset = offset, .assignments = R};
  grouped_gemm(s, {.d = d, .a = {a}, .b = b, .rows = rows});
  for (const auto& [row, value] : {std::pair{int64_t{63}, 64.},
                                   {int64_t{64}, 128.},
                                   {R - 97, 128.},
                                   {R - 96, 192.},
                                   {R - 33, 192.},
                                   {R - 32, 0.},
                                   {R - 1, 0.}})
    EXPECT_EQ(m.download(d.row_range(row, 1)), Values(size_t(N), value)) << row;

  std::vector<Tensor> dw;
  for (int e = 0; e < 3; ++e) {
    dw.push_back(m.tensor(DType::f32, {N, K}));
    fill_zero(s, dw.back());
  }
  init_normal(s, d, 1, 0, 0, 0, 0);
  grouped_gradient(s, {.d = dw, .a = {d, true}, .b = {a, true}, .rows = rows});
  for (const auto& [e, value] : {std::pair{0, 64.}, {1, double(R - 160)}, {2, 64.}})
    EXPECT_EQ(m.download(dw[size_t(e)].row_range(N - 1, 1)), Values(size_t(K), value)) << e;

  const Tensor x = m.tensor(DType::bf16, {2, N}), y = m.tensor(DType::f32, {2, R});  // (2,R) = x d^T
  init_normal(s, x, 1, 0, 0, 0, 0);
  fill_zero(s, y);
  gemm(s, {.d = y, .a = {x}, .b = {d}});
  EXPECT_EQ(m.download(y), Values(size_t(2 * R), double(N)));
}

}  // namespace
}  // namespace octet::gpu
