// Grouped products on the GPU equal three plain loops for any numbers of tokens; the contents of unused rows never
// matter, nothing is written outside the outputs, and on Hopper the host does not wait for the offsets.
#define BACKEND gpu
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <sstream>

#include "gpu/machine.h"
#include "grouped_reference.h"
#include "ops/grouped.h"

namespace octet::gpu {
namespace {

using namespace grouped_reference;

struct Size {
  std::vector<int> tokens;
  int64_t I, O;
};
struct Type {
  DType gradient, activation, d;  // dy; x and w; what is written
  bool fast = false;
};
std::ostream& operator<<(std::ostream& o, const Type& t) {
  return o << name_of(t.gradient) << ' ' << name_of(t.activation) << " to " << name_of(t.d) << (t.fast ? " fast" : "");
}

std::vector<int> tokens_of_many(int E) {
  std::vector<int> tokens(static_cast<size_t>(E));
  for (int e = 0; e < E; ++e) tokens[size_t(e)] = e % 5 * 13;
  return tokens;
}
const std::vector<int> kUneven{0, 1, 15, 17, 129, 0, 300, 33, 64, 256, 0};

// Small whole numbers: all sums are exact in fp32, and in what FP8 products accumulate in.
struct Case {
  Machine& m;
  Size size;
  std::vector<int32_t> offset;
  int64_t R, E, I, O;
  Values x, dy;
  std::vector<Values> w, dw;

  Case(Machine& machine, const Size& s, uint64_t seed)
      : m(machine),
        size(s),
        offset(offsets(s.tokens)),
        R(offset.back() + 96),
        E(int64_t(s.tokens.size())),
        I(s.I),
        O(s.O) {
    uint64_t stream = 0;
    const auto draw = [&](int64_t n) {
      Values v(static_cast<size_t>(n));
      ++stream;
      for (size_t i = 0; i < v.size(); ++i) v[i] = double(random_bits(seed, stream, i) % 5) - 2;
      return v;
    };
    x = draw(R * I), dy = draw(R * O);
    for (int64_t e = 0; e < E; ++e) w.push_back(draw(O * I)), dw.push_back(draw(O * I));
  }
  ExpertRows rows() {
    const Tensor t = m.tensor(DType::i32, {E + 1});
    copy_to_device(m.stream, t.data, offset.data(), t.bytes());
    m.stream.synchronize();
    return {.offset = t, .assignments = std::accumulate(size.tokens.begin(), size.tokens.end(), int64_t{0})};
  }
  // Rows of a factor; behind the last there is no number. FP8 is transposed where it is contracted over rows.
  Factor by_cols(const Values& v, int64_t cols, DType t) {
    return {m.upload(t, {R, cols}, poisoned(v, cols)), false, scale(t)};
  }
  Factor by_rows(const Values& v, int64_t cols, DType t) {
    if (is_fp8(t)) return {m.upload(t, {cols, R}, transposed(poisoned(v, cols), R, cols)), false, scale(t)};
    return {m.upload(t, {R, cols}, poisoned(v, cols)), true};
  }
  Values poisoned(Values v, int64_t cols) const {
    for (int64_t i = offset.back() * cols; i < R * cols; ++i) v[size_t(i)] = NAN;
    return v;
  }
  const float* scale(DType t) { return is_fp8(t) ? m.scalar(1) : nullptr; }
};

class GroupedGemm : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_available()) GTEST_SKIP() << "no GPU";
    machine = std::make_unique<Machine>();
  }
  bool hopper() const { return machine->device.target().compute_capability / 10 == 9; }
  std::vector<Type> types() const {
    std::vector<Type> all{{DType::bf16, DType::bf16, DType::bf16}, {DType::bf16, DType::bf16, DType::f32}};
    if (machine->device.target().fp8())
      for (const DType g : {DType::e4m3, DType::e5m2})
        for (const DType d : {DType::bf16, DType::f32})
          for (const bool fast : {false, true}) all.push_back({g, DType::e4m3, d, fast});
    return all;
  }
  // d between two rows that must stay as they are; filled with what is no number, or with `before`.
  struct Guarded {
    Tensor all, d;
  };
  Guarded guarded(DType t, int64_t rows, int64_t cols, const Values& before = {}) {
    Values v(size_t((rows + 2) * cols), NAN);
    std::copy(before.begin(), before.end(), v.begin() + cols);
    std::fill_n(v.begin(), cols, 7.), std::fill_n(v.end() - cols, cols, 7.);
    const Tensor all = machine->upload(t, {rows + 2, cols}, v);
    return {all, all.row_range(1, rows)};
  }
  void expect(const Guarded& g, const Values& want, const std::string& what) {
    const Values got = machine->download(g.all), exact = octet::gpu::rounded(want, g.d.dtype);
    const int64_t cols = g.d.cols(), n = g.d.numel();
    int64_t wrong = 0, first = -1;
    for (int64_t i = 0; i < n + 2 * cols; ++i) {
      const double right = i < cols || i >= n + cols ? 7 : exact[size_t(i - cols)];
      if (got[size_t(i)] == right) continue;
      if (wrong++ == 0) first = i - cols;
    }
    EXPECT_EQ(wrong, 0) << what << ": first at row " << first / cols << ", column " << first % cols;
  }
  void forward_and_back(Case& c, const Type& t, const Values& y, const Values& dx) {
    const std::string what = (std::ostringstream() << t << ", " << c.I << " to " << c.O).str();
    std::vector<Factor> forward, back;
    for (int64_t e = 0; e < c.E; ++e) {
      const Values& w = c.w[size_t(e)];
      const Tensor plain = machine->upload(t.activation, {c.O, c.I}, w);
      forward.push_back({plain, false, c.scale(t.activation)});
      if (is_fp8(t.activation))
        back.push_back(
            {machine->upload(t.activation, {c.I, c.O}, transposed(w, c.O, c.I)), false, c.scale(t.activation)});
      else back.push_back({plain, true});
    }
    const Guarded gy = guarded(t.d, c.R, c.O), gx = guarded(t.d, c.R, c.I);
    grouped_gemm(machine->stream,
                 {.d = gy.d, .a = c.by_cols(c.x, c.I, t.activation), .b = forward, .rows = c.rows(), .fast = t.fast});
    grouped_gemm(machine->stream,
                 {.d = gx.d, .a = c.by_cols(c.dy, c.O, t.gradient), .b = back, .rows = c.rows(), .fast = t.fast});
    expect(gy, y, "forward, " + what);
    expect(gx, dx, "input gradient, " + what);
  }
  // first_term: the sums begin, where something else lies.
  void gradients(Case& c, const Type& t, const std::vector<Values>& sums, bool first_term) {
    const Values nothing(size_t(c.O * c.I), NAN), zeros(nothing.size());
    std::vector<Guarded> guards;
    std::vector<Tensor> d;
    for (int64_t e = 0; e < c.E; ++e) {
      guards.push_back(guarded(t.d, c.O, c.I, first_term ? nothing : c.dw[size_t(e)]));
      d.push_back(guards.back().d);
    }
    grouped_gradient(machine->stream, {.d = d,
                                       .a = c.by_rows(c.dy, c.O, t.gradient),
                                       .b = c.by_rows(c.x, c.I, t.activation),
                                       .rows = c.rows(),
                                       .fast = t.fast,
                                       .first_term = first_term});
    for (size_t e = 0; e < d.size(); ++e) {
      Values want = sums[e];
      for (size_t i = 0; i < want.size(); ++i) want[i] += (first_term ? zeros : c.dw[e])[i];
      expect(guards[e], want,
             (std::ostringstream() << t << (first_term ? ", first" : ",") << " gradient of expert " << e).str());
    }
  }
  void run(const Size& size, uint64_t seed, const std::vector<Type>& all) {
    Case c(*machine, size, seed);
    std::vector<Values> w_t, sums;
    for (const Values& w : c.w) w_t.push_back(transposed(w, c.O, c.I));
    for (int64_t e = 0; e < c.E; ++e) sums.push_back(sums_product(c.offset, e, c.dy, c.x, c.O, c.I));
    const Values y = rows_product(c.offset, c.x, c.w, c.O, c.I), dx = rows_product(c.offset, c.dy, w_t, c.I, c.O);
    for (const Type& t : all) {
      forward_and_back(c, t, y, dx);
      for (const bool first_term : {false, true}) gradients(c, t, sums, first_term);
    }
  }
  std::unique_ptr<Machine> machine;
};

TEST_F(GroupedGemm, IsThePlainLoopForAnyNumbersOfTokens) {
  run({kUneven, 208, 336}, 1, types());
  run({{0, 0, 777, 0}, 304, 80}, 2, types());
  run({{0, 0, 0}, 64, 32}, 3, types());
  run({{130}, 32, 560}, 4, types());
}
TEST_F(GroupedGemm, OfMoreExpertsThanALaunchTakes) { run({tokens_of_many(70), 96, 48}, 5, types()); }
TEST_F(GroupedGemm, TakesEverySizeOfPlainProducts) {
  const std::vector<Type> plain{{DType::bf16, DType::bf16, DType::bf16}, {DType::f32, DType::f32, DType::f32}};
  run({kUneven, 200, 72}, 6, plain);
  run({kUneven, 37, 41}, 7, plain);  // rows of 74 bytes: by cuBLASLt, expert after expert
}

TEST_F(GroupedGemm, EachExpertHasItsScales) {
  if (!machine->device.target().fp8()) GTEST_SKIP() << "a GPU without FP8";
  Case c(*machine, {{5, 0, 40, 17}, 64, 48}, 8);
  Values apart(size_t(4 * c.E));
  for (size_t e = 0; e < size_t(c.E); ++e) apart[4 * e] = std::ldexp(1., -int(e) - 1);
  apart[4] = std::nan("");  // expert 1 has no rows: nobody has written its scale
  const float* scales = machine->upload(DType::f32, {4 * c.E}, apart).ptr<float>();
  std::vector<Factor> w;
  std::vector<Tensor> d;
  for (int64_t e = 0; e < c.E; ++e) {
    w.push_back({machine->upload(DType::e4m3, {c.O, c.I}, c.w[size_t(e)]), false, scales + 4 * e});
    d.push_back(machine->upload(DType::f32, {c.O, c.I}, Values(size_t(c.O * c.I), std::nan(""))));
  }
  Factor x = c.by_cols(c.x, c.I, DType::e4m3), x_t = c.by_rows(c.x, c.I, DType::e4m3),
         dy_t = c.by_rows(c.dy, c.O, DType::e5m2);
  x.scale_inv = x_t.scale_inv = dy_t.scale_inv = scales;
  const Guarded y = guarded(DType::f32, c.R, c.O);
  grouped_gemm(machine->stream, {.d = y.d, .a = x, .b = w, .rows = c.rows(), .scale_step = 4});
  grouped_gradient(machine->stream,
                   {.d = d, .a = dy_t, .b = x_t, .rows = c.rows(), .scale_step = 4, .first_term = true});
  Values want = rows_product(c.offset, c.x, c.w, c.O, c.I);
  for (int64_t r = 0; r < c.offset.back(); ++r)
    for (int64_t o = 0; o < c.O; ++o)
      want[size_t(r * c.O + o)] *= std::pow(apart[size_t(4 * expert_of(c.offset, r))], 2);
  expect(y, want, "scaled");
  for (int64_t e = 0; e < c.E; ++e) {
    Values sum = sums_product(c.offset, e, c.dy, c.x, c.O, c.I);
    if (c.offset[size_t(e)] < c.offset[size_t(e) + 1])
      for (double& v : sum) v *= std::pow(apart[size_t(4 * e)], 2);
    EXPECT_EQ(machine->download(d[size_t(e)]), sum) << e;
  }
}

// One large product and many small ones, which an accumulator of 14 bits loses unless it is promoted to fp32.
TEST_F(GroupedGemm, SplitAccumulationKeepsSmallAddends) {
  if (!machine->device.target().fp8()) GTEST_SKIP() << "a GPU without FP8";
  constexpr int64_t R = 32, N = 16, K = 4096;
  Values a(size_t(R * K), 0.25), b(size_t(N * K), 1);
  for (int64_t r = 0; r < R; ++r) a[size_t(r * K)] = 448;
  for (int64_t n = 0; n < N; ++n) b[size_t(n * K)] = 448;
  const Tensor offset = machine->tensor(DType::i32, {2}), y = machine->tensor(DType::f32, {R, N});
  const int32_t first[2] = {0, R};
  copy_to_device(machine->stream, offset.data, first, sizeof first);
  const std::vector<Factor> w{{machine->upload(DType::e4m3, {N, K}, b), false, machine->scalar(1)}};
  const Factor x{machine->upload(DType::e4m3, {R, K}, a), false, machine->scalar(1)};
  constexpr double kExact = 448. * 448 + 0.25 * (K - 1);
  double error[2];
  for (const bool fast : {false, true}) {
    grouped_gemm(machine->stream, {.d = y, .a = x, .b = w, .rows = {offset, R}, .fast = fast});
    error[fast] = std::abs(machine->download(y)[0] - kExact);
    std::cout << (fast ? "fast" : "split") << " accumulation: " << kExact << " is short by " << error[fast] << "\n";
  }
  EXPECT_LE(error[0], 512);  // of 1023.75; what shares a partial sum with the large product may be lost
  EXPECT_LE(error[0], error[1]);
}

TEST_F(GroupedGemm, GivesTheSameBitsAgain) {
  const auto bits = [&](DType t, bool fast) {
    const Size size{{700, 3, 0, 1290}, 528, 400};
    Case c(*machine, size, 9);
    for (Values* v : {&c.x, &c.dy}) *v = normals(int64_t(v->size()), 11);
    for (Values& w : c.w) w = normals(int64_t(w.size()), 12);
    std::vector<Factor> w;
    std::vector<Tensor> d;
    for (int64_t e = 0; e < c.E; ++e) {
      w.push_back({machine->upload(t, {c.O, c.I}, c.w[size_t(e)]), false, c.scale(t)});
      d.push_back(machine->upload(DType::f32, {c.O, c.I}, c.dw[size_t(e)]));
    }
    const Tensor y = machine->tensor(DType::f32, {c.R, c.O});
    grouped_gemm(machine->stream, {.d = y, .a = c.by_cols(c.x, c.I, t), .b = w, .rows = c.rows(), .fast = fast});
    grouped_gradient(
        machine->stream,
        {.d = d, .a = c.by_rows(c.dy, c.O, t), .b = c.by_rows(c.x, c.I, t), .rows = c.rows(), .fast = fast});
    Values all = machine->download(y);
    for (const Tensor& g : d) {
      const Values v = machine->download(g);
      all.insert(all.end(), v.begin(), v.end());
    }
    return all;
  };
  EXPECT_EQ(bits(DType::bf16, false), bits(DType::bf16, false));
  if (!machine->device.target().fp8()) return;
  for (const bool fast : {false, true}) EXPECT_EQ(bits(DType::e4m3, fast), bits(DType::e4m3, fast)) << fast;
}

// Thousands of tiles, of which each block computes many in several rounds; rows of the result are sampled.
TEST_F(GroupedGemm, OfManyTilesMissesNone) {
  if (!hopper()) GTEST_SKIP() << "cuBLASLt's business elsewhere";
  Case c(*machine, {{1030, 0, 3000, 17, 1400, 2700}, 64, 9248}, 13);
  std::vector<Factor> w;
  for (const Values& v : c.w) w.push_back({machine->upload(DType::bf16, {c.O, c.I}, v)});
  const Tensor y = machine->upload(DType::f32, {c.R, c.O}, Values(size_t(c.R * c.O), NAN));
  grouped_gemm(machine->stream, {.d = y, .a = c.by_cols(c.x, c.I, DType::bf16), .b = w, .rows = c.rows()});
  for (int64_t r = 0; r < c.R; r += 37) {
    const int64_t e = expert_of(c.offset, r);
    const Values x(c.x.begin() + r * c.I, c.x.begin() + (r + 1) * c.I);
    const Values want = e < 0 ? Values(size_t(c.O)) : rows_product({0, 1}, x, {c.w[size_t(e)]}, c.O, c.I);
    ASSERT_EQ(machine->download(y.row_range(r, 1)), want) << r;
  }

  Case g(*machine, {{5, 40, 0, 33, 64, 90, 1, 20, 32, 31}, 4384, 2048}, 14);
  std::vector<Tensor> d;
  for (int64_t e = 0; e < g.E; ++e) {
    d.push_back(machine->tensor(DType::f32, {g.O, g.I}));
    fill_byte(machine->stream, d.back().data, 0xFF, d.back().bytes());  // NaN, until the sums' first terms
  }
  const Factor dy = g.by_rows(g.dy, g.O, DType::bf16), x = g.by_rows(g.x, g.I, DType::bf16);
  for (int times = 1; times <= 2; ++times) {
    grouped_gradient(machine->stream, {.d = d, .a = dy, .b = x, .rows = g.rows(), .first_term = times == 1});
    for (int64_t e = 0; e < g.E; ++e)
      for (int64_t m = 11 * times; m < g.O; m += 167) {
        Values column;
        for (int64_t r = 0; r < g.R; ++r) column.push_back(g.dy[size_t(r * g.O + m)]);
        Values want = sums_product(g.offset, e, column, g.x, 1, g.I);
        for (double& v : want) v *= times;
        ASSERT_EQ(machine->download(d[size_t(e)].row_range(m, 1)), want) << e << " " << m;
      }
  }
}

// A stream that is being captured into a graph refuses every wait of the host.
TEST_F(GroupedGemm, MakesNoHostWait) {
  if (!hopper()) GTEST_SKIP() << "elsewhere the offsets come to the host";
  Case c(*machine, {kUneven, 64, 48}, 10);
  std::vector<Factor> w;
  std::vector<Tensor> d;
  for (int64_t e = 0; e < c.E; ++e) {
    w.push_back({machine->upload(DType::bf16, {c.O, c.I}, c.w[size_t(e)])});
    d.push_back(machine->upload(DType::f32, {c.O, c.I}, Values(size_t(c.O * c.I))));
  }
  const Guarded y = guarded(DType::bf16, c.R, c.O);
  const Factor x = c.by_cols(c.x, c.I, DType::bf16), x_t = c.by_rows(c.x, c.I, DType::bf16),
               dy_t = c.by_rows(c.dy, c.O, DType::bf16);
  const ExpertRows rows = c.rows();
  const auto stream = static_cast<cudaStream_t>(machine->stream.native());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  grouped_gemm(machine->stream, {.d = y.d, .a = x, .b = w, .rows = rows});
  grouped_gradient(machine->stream, {.d = d, .a = dy_t, .b = x_t, .rows = rows});
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  expect(y, rows_product(c.offset, c.x, c.w, c.O, c.I), "from a graph");
  for (int64_t e = 0; e < c.E; ++e)
    EXPECT_EQ(machine->download(d[size_t(e)]), sums_product(c.offset, e, c.dy, c.x, c.O, c.I)) << e;
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace octet::gpu
