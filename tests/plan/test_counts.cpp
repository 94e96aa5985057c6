// The plan engine counts: products and attention by their formulas, bytes by their operands, collectives by a ring.
#include <gtest/gtest.h>

#include "comm/comm.h"
#include "device/plan.h"
#include "ops/workspace.h"

namespace octet::BACKEND {
namespace {

struct Counts : testing::Test {
  Device device{{.poison = true, .target = {.cuda = true, .compute_capability = 90, .multiprocessors = 132}}};
  Stream s{device};
  Arena arena{s, "test", size_t{1} << 50};
  Tensor make(DType t, Shape shape) { return arena.alloc(t, shape); }
  Work of(Kernel k) { return device.take_work()[size_t(k)]; }
};

TEST_F(Counts, AddressesAreDistinct) {
  Arena other(s, "other", size_t{1} << 50);
  const Tensor a = make(DType::f32, {1}), b = other.alloc(DType::f32, {1});
  const auto distance = reinterpret_cast<uintptr_t>(b.data) - reinterpret_cast<uintptr_t>(a.data);
  EXPECT_GE(distance, size_t{1} << 50);
  EXPECT_NE(device_alloc(device, 0), device_alloc(device, 0));
  EXPECT_THROW(device_alloc(device, SIZE_MAX), Error);
  EXPECT_EQ(of(Kernel::copy).calls, 0);  // poison is no work
}

TEST_F(Counts, ProductsByDtypeAndShape) {
  const Tensor a = make(DType::bf16, {6, 4}), b = make(DType::bf16, {5, 4}), d = make(DType::f32, {6, 5});
  gemm(s, {.d = d, .a = {a}, .b = {b}});
  gemm(s, {.d = d, .a = {a}, .b = {b}, .accumulate = true});
  gemm(s, {.d = d, .a = {a}, .b = {b}});
  const WorkLog work = device.take_work();
  const Work& w = work[size_t(Kernel::gemm_bf16)];
  EXPECT_EQ(w.flops, 3 * 2. * 6 * 5 * 4);
  EXPECT_EQ(w.bytes, 3 * (24 + 20) * 2. + (1 + 2 + 1) * 30 * 4.);
  EXPECT_EQ(w.calls, 3);
  const auto products = take_products(device);
  ASSERT_EQ(products.size(), 2u);
  EXPECT_EQ(products[0].calls, 2);
  EXPECT_EQ(products[0].M, 6);
  EXPECT_EQ(products[0].N, 5);
  EXPECT_EQ(products[0].K, 4);
  EXPECT_TRUE(products[1].accumulate);
  EXPECT_TRUE(take_products(device).empty());
  EXPECT_EQ(of(Kernel::gemm_bf16).calls, 0);  // taken

  const Tensor q = make(DType::e4m3, {6, 4}), g = make(DType::e5m2, {5, 4});
  gemm(s, {.d = d, .a = {q}, .b = {g}});
  EXPECT_EQ(of(Kernel::gemm_fp8).calls, 1);
  EXPECT_THROW(gemm(s, {.d = d, .a = {make(DType::e4m3, {4, 6}), true}, .b = {g}}), Error);
  EXPECT_THROW(gemm(s, {.d = d, .a = {a}, .b = {make(DType::bf16, {5, 3})}}), Error);
  const Tensor a_t = make(DType::f32, {4, 6}), b_t = make(DType::f32, {4, 5});  // dW = dy^T x
  gemm(s, {.d = d, .a = {a_t, true}, .b = {b_t, true}});
  EXPECT_EQ(of(Kernel::gemm_f32).flops, 2. * 6 * 5 * 4);
}

// As the gpu engine looks its plan up, or the plan that was tuned would never be found.
TEST_F(Counts, OfAProductOnlyWhatItsPlanDependsOn) {
  const Tensor a = make(DType::bf16, {16, 32}), b = make(DType::bf16, {48, 32}), d = make(DType::bf16, {16, 48});
  const Tensor bias = make(DType::bf16, {48}), wide_bias = make(DType::f32, {48}),
               residual = make(DType::bf16, d.shape);
  const Tensor q = make(DType::e4m3, a.shape), w = make(DType::e4m3, b.shape);
  const auto met = [&](const GemmArgs& g) {
    gemm(s, g);
    return take_products(device).at(0);
  };
  EXPECT_FALSE(met({.d = d, .a = {a}, .b = {b}, .fast = true}).fast);  // FP8's
  EXPECT_TRUE(met({.d = d, .a = {q}, .b = {w}, .fast = true}).fast);
  EXPECT_TRUE(met({.d = d, .a = {a}, .b = {b}, .bias = bias}).bias);
  EXPECT_FALSE(met({.d = d, .a = {a}, .b = {b}, .bias = wide_bias}).bias);  // added behind the product
  EXPECT_TRUE(met({.d = make(DType::f32, d.shape), .a = {q}, .b = {w}, .bias = bias}).bias);
  EXPECT_FALSE(met({.d = make(DType::f32, d.shape), .a = {q}, .b = {w}, .bias = wide_bias}).bias);
  EXPECT_TRUE(met({.d = d, .a = {a}, .b = {b}, .residual = residual}).residual);
  const ProductShape both = met({.d = d, .a = {a}, .b = {b}, .residual = residual, .accumulate = true});
  EXPECT_TRUE(both.accumulate && !both.residual);  // cuBLASLt adds one matrix
}

TEST_F(Counts, AttentionIsSixTimesLayersChannelsTime) {
  const int64_t B = 2, T = 16, N = B * T;
  Attention a{.heads = {.H = 4, .G = 2, .D = 8}, .B = B, .T = T};
  const int64_t C = a.heads.H * a.heads.D;
  const Tensor qkv = make(DType::bf16, {N, a.heads.width()}), o = make(DType::bf16, {N, C}),
               lse = make(DType::f32, {B, a.heads.H, T});
  const auto flops = [&] {
    attention_forward(s, o, lse, qkv, a, {});
    attention_backward(s, {.dqkv = qkv, .d_o = o, .o = o, .lse = lse, .qkv = qkv}, a);
    const WorkLog w = device.take_work();
    const double f = w[size_t(Kernel::attention_forward)].flops, b = w[size_t(Kernel::attention_backward)].flops;
    EXPECT_EQ(b, 2 * f);
    return f + b;
  };
  EXPECT_EQ(flops(), 6. * double(C * T * N));
  a.window = T;  // no window at all
  EXPECT_EQ(flops(), 6. * double(C * T * N));
  a.window = T / 2;  // three quarters of the triangle
  EXPECT_EQ(flops(), 0.75 * 6. * double(C * T * N));
}

TEST_F(Counts, BytesOfElementwiseWork) {
  const Tensor x = make(DType::bf16, {6, 4}), w = make(DType::bf16, {4}), rstd = make(DType::f32, {6});
  const Operand y{.q = make(DType::e4m3, {6, 4}), .q_t = make(DType::e4m3, {4, 6})};
  rmsnorm_forward(s, y, rstd, x, w, 1e-5);
  const WorkLog work = device.take_work();
  EXPECT_EQ(work[size_t(Kernel::norm)].bytes, 24 + 24 + 48 + 8);  // codes by rows, rstd, x, w
  EXPECT_EQ(work[size_t(Kernel::norm)].flops, 0);
  EXPECT_EQ(work[size_t(Kernel::quantize)].bytes, 24 + 24);  // the codes' transposition
  const Tensor losses = make(DType::f32, {6}), targets = make(DType::i32, {6});
  cross_entropy(s, losses, x, targets, 4, 1, Backward::no);
  EXPECT_EQ(of(Kernel::loss).bytes, 24 + 24 + 48);
  cross_entropy(s, losses, x, targets, 4, 1, Backward::yes);
  EXPECT_EQ(of(Kernel::loss).bytes, 24 + 24 + 2 * 48);
  float home[2] = {1, 1};
  copy_to_host(s, home, losses.data, sizeof home);
  EXPECT_EQ(home[1], 0);
}

TEST_F(Counts, PartialRotaryMovesWholeSectors) {
  const auto moved = [&](Heads h, int64_t R, DType t) {
    const Tensor qkv = make(t, {8, h.width()});
    rope_forward(s, qkv, {.table = make(DType::f32, {8, R / 2, 2}), .heads = h, .T = 8});
    const double forward = of(Kernel::rope).bytes;
    rope_backward(s, {.plain = qkv}, qkv, {.table = make(DType::f32, {8, R / 2, 2}), .heads = h, .T = 8});
    EXPECT_EQ(of(Kernel::rope).bytes, forward);
    return forward / 8 / 2;  // of a row, one way
  };
  const Heads neox{.H = 4, .G = 4, .D = 128, .interleaved = true}, llama{.H = 4, .G = 2, .D = 64};
  EXPECT_EQ(moved(neox, 32, DType::bf16), 8 * 64);    // two sectors of each head of q and k
  EXPECT_EQ(moved(neox, 4, DType::bf16), 8 * 32);     // 8 bytes, in a sector that moves whole
  EXPECT_EQ(moved(neox, 20, DType::bf16), 8 * 64);    // 40 bytes
  EXPECT_EQ(moved(llama, 64, DType::bf16), 6 * 128);  // all of q and k
  EXPECT_EQ(moved({.H = 2, .G = 2, .D = 20, .interleaved = true}, 6, DType::bf16),
            2 * 64 + 32);  // at bytes 0, 40; 120, 160
}

TEST_F(Counts, CollectivesByARing) {
  LoneHost host(4);
  const auto comm = make_comm(device, host);
  const Tensor full = make(DType::bf16, {400}), mine = make(DType::bf16, {100});
  comm->all_gather(s, full, mine);
  comm->reduce_scatter(s, mine, full);
  comm->all_reduce(s, full, Reduce::sum);
  const WorkLog w = device.take_work();
  EXPECT_EQ(w[size_t(Kernel::all_gather)].bytes, 600);
  EXPECT_EQ(w[size_t(Kernel::reduce_scatter)].bytes, 600);
  EXPECT_EQ(w[size_t(Kernel::all_reduce)].bytes, 1200);
  EXPECT_THROW(comm->all_gather(s, full, full), Error);
}

TEST(Workspace, FollowsTheTarget) {
  const Attention a{.heads = {.H = 32, .G = 8, .D = 128}, .B = 2, .T = 4096};
  Target t{};  // a CPU needs none
  EXPECT_EQ(attention_forward_workspace(t, a, DType::f32), 0);
  EXPECT_EQ(attention_backward_workspace(t, a, DType::f32), 0);
  t = {.cuda = true, .compute_capability = 90, .multiprocessors = 132};
  const int64_t delta = 2 * 32 * 4096 * 4, dq = 2 * 4096 * 4096 * 4;
  const int64_t rows = 2 * delta;  // Hopper's kernels in bf16: the log-sums beside delta
  EXPECT_EQ(attention_forward_workspace(t, a, DType::f32), 0);
  EXPECT_EQ(attention_forward_workspace(t, a, DType::bf16), 4);  // a counter
  EXPECT_EQ(attention_backward_workspace(t, a, DType::bf16), rows);
  t.attention = AttentionKind::cudnn;
  EXPECT_EQ(attention_forward_workspace(t, a, DType::bf16), kCudnnSlack);
  EXPECT_EQ(attention_backward_workspace(t, a, DType::f32), delta);  // cuDNN takes bf16 only
  const int64_t scores = int64_t{32} * 4096 * 4096 * 2;  // one sequence at a time; its dk and dv of each query head
  EXPECT_EQ(attention_backward_workspace(t, a, DType::bf16), rows + scores + dq / 2 + kCudnnSlack);
  t.attention = AttentionKind::automatic;  // our own where bits must repeat
  EXPECT_EQ(attention_backward_workspace(t, a, DType::bf16), rows);
  t.deterministic = false;
  EXPECT_EQ(attention_backward_workspace(t, a, DType::bf16), rows + dq + dq + kCudnnSlack);
  EXPECT_EQ(attention_forward_workspace(t, a, DType::bf16), 4);
  const Attention odd{.heads = {.H = 8, .G = 2, .D = 64}, .B = 3, .T = 129};  // whole tiles; ours at D 64
  EXPECT_EQ(attention_backward_workspace(t, odd, DType::bf16), 3 * 8 * 192 * 8);
  t.compute_capability = 100;  // no kernel of ours is made for it
  EXPECT_EQ(attention_backward_parts(t, odd, DType::bf16).delta, (3 * 8 * 129 * 4 + 255) / 256 * 256);
}

// Its gradients of very large tensors are wrong: those are our own kernels', forward and backward.
TEST(Workspace, CudnnGetsTensorsOfLessThan2GiB) {
  const Target t{.cuda = true,
                 .compute_capability = 90,
                 .multiprocessors = 132,
                 .attention = AttentionKind::cudnn,
                 .deterministic = false};
  for (const Heads& heads : {Heads{.H = 32, .G = 32, .D = 128}, Heads{.H = 64, .G = 8, .D = 96}}) {
    const int64_t row = std::max(heads.width() * 2, heads.H * heads.D * 4), most = ((int64_t{1} << 31) - 1) / row;
    for (const auto& [B, T] : {std::pair<int64_t, int64_t>{1, most}, {most, 1}}) {
      const Attention largest{.heads = heads, .B = B, .T = T};
      Attention beyond = largest;
      ++(T == 1 ? beyond.B : beyond.T);
      EXPECT_EQ(attention_forward_workspace(t, largest, DType::bf16), kCudnnSlack);
      EXPECT_GT(attention_backward_parts(t, largest, DType::bf16).own, 0);
      EXPECT_LE(attention_forward_workspace(t, beyond, DType::bf16), 4);
      EXPECT_EQ(attention_backward_parts(t, beyond, DType::bf16).own, 0);
      EXPECT_EQ(attention_backward_parts(t, beyond, DType::bf16).dq, 0);
    }
  }
}

}  // namespace
}  // namespace octet::BACKEND
