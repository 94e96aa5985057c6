// Tensors of more than 2^31 and 2^32 elements: the last rows of an operation's result are, bit for bit, those of the
// operation on these rows alone. A 32-bit index would miss them.
#define BACKEND gpu
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "gpu/machine.h"
#include "ops/moe.h"
#include "ops/workspace.h"

namespace octet::gpu {
namespace {

constexpr int64_t kN = 131072, kC = 28672, kLast = 128;  // rows, columns; rows that are compared

class Large : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_available()) GTEST_SKIP() << "no GPU";
    m_ = std::make_unique<Machine>();
    const size_t free = m_->device.total_bytes() - m_->device.used_bytes();
    if (free < size_t{66} << 30) GTEST_SKIP() << "these tensors take 64 GiB";
    in_ = m_->tensor(DType::bf16, {kN, 2 * kC}), out_ = m_->tensor(DType::bf16, in_.shape);
    codes_ = m_->tensor(DType::e4m3, in_.shape), transposed_ = m_->tensor(DType::e4m3, {2 * kC, kN});
    init_normal(m_->stream, in_, 0, 1, 1, 1, 0);
  }
  std::vector<char> bits(Tensor t) {
    std::vector<char> b(t.bytes());
    copy_to_host(m_->stream, b.data(), t.data, b.size());
    m_->stream.synchronize();
    return b;
  }
  static Tensor last(Tensor t) { return t.row_range(t.rows() - kLast, kLast); }
  Tensor matrix(Tensor room, int64_t rows, int64_t cols) const {
    CHECK(rows * cols <= room.numel());
    return room.as(room.dtype, {rows, cols});
  }
  Tensor small(DType t, Shape shape) { return m_->tensor(t, shape); }
  Operand forms(Tensor plain, Tensor q, Tensor q_t) {
    return {plain, q, q_t, nullptr, {const_cast<float*>(m_->scalar(30)), nullptr, DType::e4m3}};
  }
  // An operation that makes forms (rows, cols): of all rows, and of the last ones.
  void check(const char* what, int64_t rows, int64_t cols, const std::function<void(Operand, int64_t first)>& op) {
    SCOPED_TRACE(what);
    const Tensor y = matrix(out_, rows, cols), q = matrix(codes_, rows, cols), q_t = matrix(transposed_, cols, rows);
    op(forms(y, q, q_t), 0);
    const Tensor y1 = small(DType::bf16, {kLast, cols}), q1 = small(DType::e4m3, y1.shape),
                 q_t1 = small(DType::e4m3, {cols, kLast});
    op(forms(y1, q1, q_t1), rows - kLast);
    EXPECT_EQ(bits(last(y)), bits(y1));
    EXPECT_EQ(bits(last(q)), bits(q1));
    for (const int64_t c : {int64_t{0}, cols / 2 + 1, cols - 1})
      EXPECT_EQ(bits(q_t.part(c * rows + rows - kLast, {kLast})), bits(q_t1.row_range(c, 1))) << "column " << c;
  }

  std::unique_ptr<Machine> m_;
  Tensor in_, out_, codes_, transposed_;
};

TEST_F(Large, ProducersOfForms) {
  Stream& s = m_->stream;
  const auto rows_of = [](Tensor x, int64_t first) { return x.row_range(first, x.rows() - first); };
  check("quantize", kN, 2 * kC, [&](Operand y, int64_t first) { quantize(s, y, rows_of(in_, first)); });
  check("swiglu_forward", kN, kC, [&](Operand y, int64_t first) { swiglu_forward(s, y, rows_of(in_, first)); });
  const Tensor dy = small(DType::bf16, {kN, kC});
  init_normal(s, dy, 0, 1, 1, 2, 0);
  check("swiglu_backward", kN, 2 * kC,
        [&](Operand y, int64_t first) { swiglu_backward(s, y, rows_of(dy, first), rows_of(in_, first)); });
  check("gelu_backward", kN, kC, [&](Operand y, int64_t first) {
    gelu_backward(s, y, rows_of(dy, first), rows_of(matrix(in_, kN, kC), first), Gelu::exact);
  });
  constexpr int64_t kWide = 16384, kRows = 180224;  // a norm's registers hold that many columns
  const Tensor x = matrix(in_, kRows, kWide), w = in_.part(0, {kWide});
  check("rmsnorm_forward", kRows, kWide, [&](Operand y, int64_t first) {
    rmsnorm_forward(s, y, small(DType::f32, {kRows - first}), rows_of(x, first), w, 1e-5);
  });
  constexpr int64_t kT = 4096;
  const Tensor table = small(DType::f32, {kT, 64, 2});
  init_normal(s, table, 0, 1, 1, 3, 0);
  const Heads heads{.H = 112, .G = 8, .D = 128};
  for (const bool on : {true, false})
    check("rope_backward", kRows, heads.width(), [&](Operand y, int64_t first) {
      rope_backward(s, y, rows_of(x, first),
                    {.table = table, .heads = heads, .T = kT, .first = first ? kT - kLast : 0, .rounded = !on});
    });
}

TEST_F(Large, InPlaceAndPlain) {
  Stream& s = m_->stream;
  constexpr int64_t kWide = 16384, kRows = 180224, kT = 4096;
  const Tensor x = matrix(in_, kRows, kWide), y = matrix(out_, kRows, kWide), some = small(DType::bf16, {kLast, kWide});
  const Tensor table = small(DType::f32, {kT, 64, 2});
  init_normal(s, table, 0, 1, 1, 3, 0);
  const Heads heads{.H = 112, .G = 8, .D = 128};
  copy(s, y, x), copy(s, some, last(x));
  rope_forward(s, y, {.table = table, .heads = heads, .T = kT});
  rope_forward(s, some, {.table = table, .heads = heads, .T = kT, .first = kT - kLast});
  EXPECT_EQ(bits(last(y)), bits(some));

  add(s, y, y, x), add(s, some, some, last(x));
  EXPECT_EQ(bits(last(y)), bits(some));

  const int64_t n = in_.numel(), first = n - 1000;
  init_normal(s, some.part(0, {1000}), 0, 1, 1, 1, first);
  EXPECT_EQ(bits(in_.part(first, {1000})), bits(some.part(0, {1000})));
  convert(s, out_.as(DType::f32, {n / 2}), in_.part(n / 2, {n / 2}));
  convert(s, some.as(DType::f32, {1000}), in_.part(first, {1000}));
  EXPECT_EQ(bits(out_.as(DType::f32, {n / 2}).part(n / 2 - 1000, {1000})), bits(some.as(DType::f32, {1000})));

  quantize(s, forms({}, codes_, {}), in_);
  transpose(s, transposed_, codes_);
  for (const int64_t c : {int64_t{0}, kC, 2 * kC - 1}) {
    const auto column = bits(transposed_.row_range(c, 1));
    for (const int64_t r : {int64_t{0}, kN / 2 + 1, kN - 1})
      EXPECT_EQ(column[size_t(r)], bits(codes_.part(r * 2 * kC + c, {1}))[0]) << r << ", " << c;
  }
}

TEST_F(Large, NormsBackwardAndSums) {
  Stream& s = m_->stream;
  const int64_t P = partial_rows(m_->device.target());
  for (const int64_t C : {int64_t{8192}, int64_t{20480}}) {  // rows in registers, and of any width
    const int64_t rows = (int64_t{1} << 32) / C + 1000;
    const Tensor x = matrix(in_, rows, C), dx = matrix(out_, rows, C), w = in_.part(0, {C});
    const Tensor rstd = small(DType::f32, {rows}), dw = small(DType::f32, {2, C}),
                 partial = small(DType::f32, {2 * P, C});
    init_normal(s, rstd, 1, 0, 0, 0, 0);
    fill_zero(s, dx), fill_zero(s, dw);
    layernorm_backward(s, {dx, dw.row_range(0, 1), dw.row_range(1, 1), x, x, w, rstd, rstd, partial});
    const Tensor some = small(DType::bf16, {kLast, C});
    fill_zero(s, some);
    const Tensor r = rstd.part(0, {kLast});
    layernorm_backward(s, {some, dw.row_range(0, 1), dw.row_range(1, 1), last(x), last(x), w, r, r, partial});
    EXPECT_EQ(bits(last(dx)), bits(some)) << C;
  }
  init_normal(s, in_, 1, 0, 0, 0, 0);  // ones
  const Tensor total = m_->upload(DType::f32, {2 * kC}, Values(size_t(2 * kC)));
  column_sum(s, total, in_, small(DType::f32, {P, 2 * kC}));
  EXPECT_EQ(m_->download(total), Values(size_t(2 * kC), double(kN)));
  const Tensor squares = small(DType::f64, {1});
  fill_zero(s, squares);
  sum_of_squares(s, squares, in_, small(DType::f64, {partial_sums(m_->device.target())}));
  double found = 0;
  copy_to_host(s, &found, squares.data, sizeof found);
  s.synchronize();
  EXPECT_EQ(found, double(in_.numel()));
}

TEST_F(Large, LossEmbeddingAndProducts) {
  Stream& s = m_->stream;
  constexpr int64_t V = 128256, kRows = 51200;
  const Tensor logits = matrix(in_, kRows, V), some = small(DType::bf16, {kLast, V});
  copy(s, some, last(logits));
  const auto ints = [&](int64_t n, const std::function<int64_t(int64_t)>& value) {
    std::vector<int32_t> v(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) v[size_t(i)] = int32_t(value(i));
    const Tensor t = small(DType::i32, {n});
    copy_to_device(s, t.data, v.data(), t.bytes());
    s.synchronize();
    return t;
  };
  const Tensor targets = ints(kRows, [](int64_t i) { return V - 1 - i % 1000; });
  const Tensor losses = small(DType::f32, {kRows}), loss = small(DType::f32, {kLast});
  cross_entropy(s, losses, logits, targets, V, 0.5, Backward::yes);
  cross_entropy(s, loss, some, targets.part(kRows - kLast, {kLast}), V, 0.5, Backward::yes);
  EXPECT_EQ(bits(last(logits)), bits(some));
  EXPECT_EQ(bits(losses.part(kRows - kLast, {kLast})), bits(loss));

  // One token a hundred thousand times, and its row beyond 2^31 elements. Whole numbers: every order has the same sum.
  constexpr int64_t C = 20480, N = 100000;
  const Tensor table = matrix(in_, V, C), dy = matrix(out_, N, C);
  init_normal(s, dy, 1, 0, 0, 0, 0);
  const Tensor tokens = ints(N, [](int64_t i) { return i % 1000 == 7 ? V - 2 : V - 1; });
  const Tensor order = ints(N, [](int64_t i) {
    return i < 100 ? i * 1000 + 7 : (i - 100) / 999 * 1000 + ((i - 100) % 999 + ((i - 100) % 999 >= 7));
  });
  const Tensor dw = small(DType::f32, {V, C});
  fill_zero(s, dw);
  embedding_backward(s, dw, dy, tokens, order);
  EXPECT_EQ(m_->download(dw.row_range(V - 1, 1)), Values(size_t(C), double(N - 100)));
  EXPECT_EQ(m_->download(dw.row_range(V - 2, 1)), Values(size_t(C), 100.));
  embedding_forward(s, dy, tokens, table);
  EXPECT_EQ(bits(dy.row_range(N - 1, 1)), bits(table.row_range(V - 1, 1)));

  // d (131072, 57344) = a b^T of whole numbers
  const Tensor a = small(DType::bf16, {kN, 64}), b = small(DType::bf16, {2 * kC, 64});
  init_normal(s, a, 1, 0, 0, 0, 0), init_normal(s, b, 2, 0, 0, 0, 0);
  gemm(s, {.d = out_, .a = {a}, .b = {b}});
  for (const int64_t at : {int64_t{0}, out_.numel() / 2, out_.numel() - 1000})
    EXPECT_EQ(m_->download(out_.part(at, {1000})), Values(1000, 128.));
  const Tensor x = matrix(out_, kN, 2 * kC), dy_t = small(DType::f32, {64, 2 * kC});
  gemm(s, {.d = dy_t, .a = {a, true}, .b = {x, true}});
  EXPECT_EQ(m_->download(dy_t.part(dy_t.numel() - 1000, {1000})), Values(1000, 128. * double(kN)));
}

TEST_F(Large, ExpertsThatAreAllTheSame) {
  Stream& s = m_->stream;
  constexpr int64_t N = kN, K = 2, E = 8, C = 16384;  // 2^32 elements of experts' rows
  const int64_t R = expert_rows(N, E, K);
  const Tensor expert = small(DType::i32, {N, K});
  std::vector<int32_t> chosen(size_t(N * K));
  for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = i % 2 ? 7 : 3;  // all tokens to the same two
  copy_to_device(s, expert.data, chosen.data(), expert.bytes());
  const MoeRows rows{small(DType::i32, {E + 1}), small(DType::i32, {E}), small(DType::i32, {N, K}),
                     small(DType::i32, {R})};
  moe_sort(s, rows, expert);
  const Tensor x = matrix(in_, N, C), y = matrix(out_, R, C), sum = small(DType::bf16, {N, C});
  moe_gather(s, y, x, rows.source, K);
  EXPECT_EQ(bits(y.row_range(N - 1, 1)), bits(x.row_range(N - 1, 1)));
  EXPECT_EQ(bits(y.row_range(2 * N - 1, 1)), bits(x.row_range(N - 1, 1)));
  const auto behind = bits(y.row_range(2 * N, R - 2 * N));
  EXPECT_TRUE(std::ranges::all_of(behind, [](char c) { return c == 0; }));
  moe_combine(s, sum, y, rows.row, {}, {});
  const Tensor some = small(DType::bf16, {1, C});
  add(s, some, x.row_range(N - 1, 1), x.row_range(N - 1, 1));
  EXPECT_EQ(bits(sum.row_range(N - 1, 1)), bits(some));
}

TEST_F(Large, AdamwOfOneParameter) {
  Stream& s = m_->stream;
  const int64_t n = (int64_t{1} << 31) + 4096, few = 1000;
  AdamwPiece p{.master = in_.as(DType::f32, {n}),
               .m = codes_.as(DType::bf16, {n}),
               .v = transposed_.as(DType::bf16, {n}),
               .grad = out_.part(0, {n}),
               .weights = out_.part(n, {n}),
               .stream = 5};
  init_normal(s, p.master, 0, 1, 1, 1, 0), init_normal(s, p.grad, 0, 1, 1, 2, 0);
  init_normal(s, p.m, 0.5, 0, 0, 0, 0), init_normal(s, p.v, 0.25, 0, 0, 0, 0);
  const auto own = [&](Tensor t) {
    const Tensor y = small(t.dtype, {few});
    copy(s, y, t.part(n - few, {few}));
    return y;
  };
  const AdamwPiece end{.master = own(p.master),
                       .m = own(p.m),
                       .v = own(p.v),
                       .grad = own(p.grad),
                       .weights = small(DType::bf16, {few}),
                       .stream = 5,
                       .first = n - few};
  const StepState state{.updates = 3};
  const Tensor on_device = small(DType::f64, {int64_t(sizeof state / sizeof(double))});
  copy_to_device(s, on_device.data, &state, sizeof state);
  for (const AdamwPiece& piece : {p, end}) adamw(s, {&piece, 1}, {.lr = 1e-2, .seed = 3, .step = 2}, on_device);
  for (const auto& [all, some] :
       {std::pair{p.master, end.master}, {p.m, end.m}, {p.v, end.v}, {p.weights, end.weights}})
    EXPECT_EQ(bits(all.part(n - few, {few})), bits(some));
}

}  // namespace
}  // namespace octet::gpu
