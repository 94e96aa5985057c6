// Matrix products on the GPU are those of fp64, in every form that the layers ask for.
#define BACKEND gpu
#include <gtest/gtest.h>

#include <memory>

#include "gpu/machine.h"
#include "ops/gpu/gemm_plain.h"

namespace octet::gpu {
namespace {

Values product(const Values& a, const Values& b, int64_t M, int64_t N, int64_t K) {  // a (M,K), b (N,K)
  Values d(size_t(M * N));
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += a[size_t(m * K + k)] * b[size_t(n * K + k)];
      d[size_t(m * N + n)] = sum;
    }
  return d;
}

Values transposed(const Values& x, int64_t rows, int64_t cols) {
  Values y(x.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) y[size_t(c * rows + r)] = x[size_t(r * cols + c)];
  return y;
}

double decibel(double relative_error) { return -20 * std::log10(relative_error); }

struct Quantized {
  Factor factor;
  Values values;  // of the codes, unscaled again
};
Quantized quantized(Machine& m, DType t, Shape shape, const Values& x) {
  double amax = 0;
  for (double v : x) amax = std::max(amax, std::abs(v));
  const double scale = double(largest(t)) / amax;
  Values scaled(x);
  for (double& v : scaled) v *= scale;
  Quantized q{{m.upload(t, shape, scaled), false, m.scalar(1 / scale)}, rounded(scaled, t)};
  for (double& v : q.values) v *= double(float(1 / scale));
  return q;
}

class GpuGemm : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_available()) GTEST_SKIP() << "no GPU";
    machine = std::make_unique<Machine>();
  }
  std::unique_ptr<Machine> machine;
};
class Fp8Gemm : public GpuGemm {
 protected:
  void SetUp() override {
    GpuGemm::SetUp();
    if (!IsSkipped() && !machine->device.target().fp8()) GTEST_SKIP() << "a GPU without FP8";
  }
};

struct Form {
  DType factors, d;
  bool a_transposed = false, b_transposed = false, accumulate = false, residual = false, bias = false;
  bool first_term = false;
};

std::vector<Form> every_form() {
  std::vector<Form> all;
  for (DType t : {DType::f32, DType::bf16})
    for (DType d : {DType::f32, DType::bf16})
      for (int bits = 0; bits < 32; ++bits)
        if (t == DType::bf16 || d == DType::f32) {
          const Form f{t, d, bool(bits & 1), bool(bits & 2), bool(bits & 4), bool(bits & 8), bool(bits & 16)};
          all.push_back(f);
          if (f.accumulate && !f.residual) all.push_back(f), all.back().first_term = true;
        }
  return all;
}

enum class By { gemm, plain_product };

// The largest error of any element, relative to its own bound.
double worst(Machine& m, const Form& f, std::array<int64_t, 3> size, int64_t offset, By by = By::gemm,
             bool b_ready = false) {
  const auto [M, N, K] = size;
  const Values a = rounded(normals(M * K, 1), f.factors), b = rounded(normals(N * K, 2), f.factors);
  const Values old = f.first_term ? Values(size_t(M * N), NAN) : rounded(normals(M * N, 3), f.d),
               residual = rounded(normals(M * N, 4), f.d);
  const Values bias = rounded(normals(N, 5), f.factors);
  const auto upload = [&](const Values& x, int64_t rows, bool transpose) {
    return transpose ? m.upload(f.factors, {K, rows}, transposed(x, rows, K), offset)
                     : m.upload(f.factors, {rows, K}, x, offset);
  };
  GemmArgs g{.d = m.upload(f.d, {M, N}, old, offset),
             .a = {upload(a, M, f.a_transposed), f.a_transposed},
             .b = {upload(b, N, f.b_transposed), f.b_transposed},
             .accumulate = f.accumulate,
             .first_term = f.first_term,
             .b_ready = b_ready};
  if (f.residual) g.residual = m.upload(f.d, {M, N}, residual, offset);
  if (f.bias) g.bias = m.upload(f.factors, {N}, bias, offset);
  if (by == By::gemm) gemm(m.stream, g);
  else plain_product(m.stream, g, g.residual);
  const Values y = m.download(g.d), exact = product(a, b, M, N, K);
  Values absolute_a(a), absolute_b(b);
  for (double& x : absolute_a) x = std::abs(x);
  for (double& x : absolute_b) x = std::abs(x);
  const Values size_of_sum = product(absolute_a, absolute_b, M, N, K);
  double w = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double added[] = {g.adds() ? old[i] : 0, f.residual ? residual[i] : 0, f.bias ? bias[i % size_t(N)] : 0};
    double ref = exact[i], magnitude = size_of_sum[i];
    for (double x : added) ref += x, magnitude += std::abs(x);
    // Sums of fp32: TF32 would be 100 times worse. bf16 results are rounded once or, where
    // parts are added apart, twice.
    double bound = (f.factors == DType::f32 ? 4e-6 : 1e-5) * magnitude;
    if (f.d == DType::bf16)
      bound += 0x1p-7 * (std::abs(ref) + std::abs(added[0]) + std::abs(added[1]) + std::abs(added[2]));
    w = std::max(w, std::isnan(y[i]) ? 1e9 : std::abs(y[i] - ref) / bound);
  }
  return w;
}

TEST_F(GpuGemm, IsTheProductInEveryFormAndSize) {
  const std::array<int64_t, 3> sizes[] = {{1, 1, 1},    {17, 80, 333}, {333, 17, 80}, {80, 333, 17},
                                          {1, 333, 80}, {333, 1, 17},  {80, 80, 1},   {128, 256, 64}};
  for (const auto& size : sizes)
    for (const Form& f : every_form()) {
      Machine& m = *machine;
      EXPECT_LE(worst(m, f, size, 0), 1) << size[0] << "x" << size[1] << "x" << size[2] << " " << name_of(f.factors)
                                         << " to " << name_of(f.d) << " transposed " << f.a_transposed << f.b_transposed
                                         << " accumulate " << f.accumulate << f.first_term << " residual " << f.residual
                                         << " bias " << f.bias;
    }
}

TEST_F(GpuGemm, TakesViewsThatAreAlignedToOneElement) {
  for (const Form& f : every_form())
    EXPECT_LE(worst(*machine, f, {80, 96, 64}, 1), 1) << name_of(f.factors) << " to " << name_of(f.d);
}

// Products of generation's steps, by our own kernel (few_rows.cu): any number of rows up to 16; N that fills no block,
// or is enough for blocks of 32 columns; K that fills no piece, or is far longer than what is in flight at a time.
TEST_F(GpuGemm, OfFewRowsIsTheProductToo) {
  for (const bool b_ready : {false, true})
    for (const Form& f : every_form())
      if (f.factors == DType::bf16 && !f.a_transposed && !f.b_transposed)
        for (const std::array<int64_t, 3>& size : {std::array<int64_t, 3>{1, 304, 2048},
                                                   {3, 40, 8},
                                                   {8, 333, 296},
                                                   {9, 17, 40},
                                                   {16, 48, 5632},
                                                   {1, 16, 16384},
                                                   {5, 9001, 64},
                                                   {13, 9001, 72},
                                                   {16, 9000, 264},
                                                   {17, 64, 64}}) {
          EXPECT_LE(worst(*machine, f, size, 0, By::gemm, b_ready), 1)
              << size[0] << "x" << size[1] << "x" << size[2] << " to " << name_of(f.d) << " accumulate " << f.accumulate
              << " residual " << f.residual << " bias " << f.bias << " b_ready " << b_ready;
        }
}

// Many products of few rows, each of which reads the last one's result: one that began too early would show.
TEST_F(GpuGemm, OfFewRowsFollowEachOther) {
  Machine& m = *machine;
  constexpr int64_t C = 512, kTimes = 200;
  Values w(size_t(C * C));  // a rotation of the columns by one, and of the sign
  for (int64_t n = 0; n < C; ++n) w[size_t(n * C + (n + 1) % C)] = -1;
  Values x = rounded(normals(2 * C, 1), DType::bf16);
  const Factor b{m.upload(DType::bf16, {C, C}, w)};
  const Tensor one = m.upload(DType::bf16, {2, C}, x), two = m.tensor(DType::bf16, {2, C});
  m.stream.synchronize();
  for (int64_t i = 0; i < kTimes; ++i)
    gemm(m.stream, {.d = i % 2 ? one : two, .a = {i % 2 ? two : one}, .b = b, .b_ready = true});
  const Values y = m.download(one);
  for (int64_t r = 0; r < 2; ++r)
    for (int64_t c = 0; c < C; ++c)
      EXPECT_EQ(y[size_t(r * C + c)], x[size_t(r * C + (c + kTimes) % C)]) << r << " " << c;
}

// plain_product, for where cuBLASLt has no kernel. It adds one matrix, and no bias.
TEST_F(GpuGemm, ThePlainProductIsTheProductToo) {
  for (const std::array<int64_t, 3>& size : {std::array<int64_t, 3>{17, 80, 333}, {333, 5, 80}, {3, 64, 500}})
    for (const Form& f : every_form())
      if (!f.bias && !(f.accumulate && f.residual)) {
        EXPECT_LE(worst(*machine, f, size, 1, By::plain_product), 1)
            << size[0] << "x" << size[1] << "x" << size[2] << " " << name_of(f.factors) << " to " << name_of(f.d);
      }
}

// A router's three products with an odd number of experts: logits, the gradient of x, that of the weight.
TEST_F(GpuGemm, RoutersMayHaveAnyNumberOfExperts) {
  for (const int64_t E : {3, 5, 7}) {
    constexpr int64_t N = 512, C = 1024;
    EXPECT_LE(worst(*machine, {.factors = DType::bf16, .d = DType::f32}, {N, E, C}, 0), 1) << E;
    EXPECT_LE(worst(*machine, {.factors = DType::bf16, .d = DType::bf16, .b_transposed = true, .accumulate = true},
                    {N, C, E}, 0),
              1)
        << E;
    EXPECT_LE(
        worst(*machine,
              {.factors = DType::bf16, .d = DType::f32, .a_transposed = true, .b_transposed = true, .accumulate = true},
              {E, C, N}, 0),
        1)
        << E;
  }
}

TEST_F(GpuGemm, OfNothingIsWhatIsAdded) {
  Machine& m = *machine;
  const Values r = normals(12, 1), b = normals(4, 2);
  const Tensor d = m.upload(DType::f32, {3, 4}, Values(12, 7)), residual = m.upload(DType::f32, {3, 4}, r);
  const Factor x{m.tensor(DType::f32, {3, 0})}, w{m.tensor(DType::f32, {4, 0})};
  gemm(m.stream, {.d = d, .a = x, .b = w, .accumulate = true});
  EXPECT_EQ(m.download(d), Values(12, 7));
  gemm(m.stream, {.d = d, .a = x, .b = w, .residual = residual});
  EXPECT_EQ(m.download(d), rounded(r, DType::f32));
  gemm(m.stream, {.d = d, .a = x, .b = w});
  EXPECT_EQ(m.download(d), Values(12, 0));
  gemm(m.stream, {.d = d, .a = x, .b = w, .bias = m.upload(DType::f32, {4}, b)});
  EXPECT_EQ(m.download(d)[6], double(float(b[2])));
  const Factor none{m.tensor(DType::f32, {0, 8})}, eight{m.tensor(DType::f32, {4, 8})};
  gemm(m.stream, {.d = m.tensor(DType::f32, {0, 4}), .a = none, .b = eight});
  m.stream.synchronize();
}

TEST_F(Fp8Gemm, KeepsTheSignalOfEveryAllowedPair) {
  constexpr int64_t M = 144, N = 256, K = 1024;
  const Values a = normals(M * K, 1), b = normals(N * K, 2), exact = product(a, b, M, N, K);
  struct Pair {
    DType a, b;
    double decibel;
  };
  for (const Pair p :
       {Pair{DType::e4m3, DType::e4m3, 27.5}, {DType::e4m3, DType::e5m2, 23.5}, {DType::e5m2, DType::e4m3, 23.5}}) {
    Machine& m = *machine;
    const Quantized qa = quantized(m, p.a, {M, K}, a), qb = quantized(m, p.b, {N, K}, b);
    const Values dequantized = product(qa.values, qb.values, M, N, K);
    for (const DType d : {DType::f32, DType::bf16})
      for (const bool fast : {false, true}) {
        const Tensor y = m.tensor(d, {M, N});
        gemm(m.stream, {.d = y, .a = qa.factor, .b = qb.factor, .fast = fast});
        const Values got = m.download(y);
        const double arithmetic = relative_error(got, dequantized);
        std::cout << name_of(p.a) << " x " << name_of(p.b) << " to " << name_of(d) << (fast ? " fast" : " split")
                  << ": " << decibel(relative_error(got, exact)) << " dB; of the arithmetic alone " << arithmetic
                  << "\n";
        EXPECT_GE(decibel(relative_error(got, exact)), p.decibel);
        EXPECT_LE(arithmetic, fast ? 1e-2 : d == DType::bf16 ? 3e-3 : 1.5e-3);
      }
  }
}

TEST_F(Fp8Gemm, AddsWhatIsThere) {
  constexpr int64_t M = 32, N = 48, K = 64;
  Machine& m = *machine;
  const Quantized a = quantized(m, DType::e4m3, {M, K}, normals(M * K, 1));
  const Quantized b = quantized(m, DType::e5m2, {N, K}, normals(N * K, 2));
  const Values bias = rounded(normals(N, 3), DType::bf16), exact = product(a.values, b.values, M, N, K);
  for (const DType d : {DType::f32, DType::bf16})
    for (const DType bias_type : {DType::bf16, DType::f32}) {
      const Tensor y = m.upload(d, {M, N}, Values(size_t(M * N), 3)),
                   r = m.upload(d, {M, N}, Values(size_t(M * N), -5));
      gemm(m.stream, {.d = y, .a = a.factor, .b = b.factor, .residual = r, .bias = m.upload(bias_type, {N}, bias)});
      gemm(m.stream, {.d = y, .a = a.factor, .b = b.factor, .accumulate = true});
      Values ref(exact);
      for (size_t i = 0; i < ref.size(); ++i) ref[i] = 2 * ref[i] - 5 + bias[i % size_t(N)];
      EXPECT_LE(relative_error(m.download(y), ref), d == DType::bf16 ? 6e-3 : 1.5e-3)
          << name_of(d) << " " << name_of(bias_type);
    }
}

TEST_F(Fp8Gemm, OfSmallIntegersIsExact) {
  constexpr int64_t M = 80, N = 64, K = 1024;
  Values a(size_t(M * K)), b(size_t(N * K));
  for (size_t i = 0; i < a.size(); ++i) a[i] = double(random_bits(1, 1, i) % 5) - 2;
  for (size_t i = 0; i < b.size(); ++i) b[i] = double(random_bits(1, 2, i) % 5) - 2;
  const Values exact = product(a, b, M, N, K);
  Machine& m = *machine;
  const Factor fa{m.upload(DType::e4m3, {M, K}, a), false, m.scalar(1)};
  for (const DType t : {DType::e4m3, DType::e5m2})
    for (const bool fast : {false, true}) {
      const Tensor y = m.tensor(DType::f32, {M, N});
      gemm(m.stream, {.d = y, .a = fa, .b = {m.upload(t, {N, K}, b), false, m.scalar(1)}, .fast = fast});
      EXPECT_EQ(m.download(y), exact) << name_of(t) << (fast ? " fast" : " split");
    }
}

// One large product and many small ones, which an accumulator of 14 bits loses unless it is promoted to fp32.
TEST_F(Fp8Gemm, SplitAccumulationKeepsSmallAddends) {
  constexpr int64_t M = 16, N = 16, K = 4096;
  Values a(size_t(M * K), 0.25), b(size_t(N * K), 1);
  for (int64_t r = 0; r < M; ++r) a[size_t(r * K)] = b[size_t(r * K)] = 448;
  Machine& m = *machine;
  const Factor fa{m.upload(DType::e4m3, {M, K}, a), false, m.scalar(1)};
  const Factor fb{m.upload(DType::e4m3, {N, K}, b), false, m.scalar(1)};
  constexpr double kExact = 448. * 448 + 0.25 * (K - 1);
  double error[2];
  for (const bool fast : {false, true}) {
    const Tensor y = m.tensor(DType::f32, {M, N});
    gemm(m.stream, {.d = y, .a = fa, .b = fb, .fast = fast});
    error[fast] = std::abs(m.download(y)[0] - kExact);
    std::cout << (fast ? "fast" : "split") << " accumulation: " << kExact << " is short by " << error[fast] << "\n";
  }
  EXPECT_LE(error[0], 512);  // of 1023.75; what shares a partial sum with the large product may be lost
  EXPECT_LE(error[0], error[1]);
}

TEST_F(Fp8Gemm, RefusesWhatTheLibraryWould) {
  Machine& m = *machine;
  const Tensor a = m.tensor(DType::e4m3, {16, 32}), d = m.tensor(DType::f32, {16, 16});
  const Tensor e = m.tensor(DType::e5m2, {16, 32}), odd = m.tensor(DType::e4m3, {16, 40});
  const float* one = m.scalar(1);
  EXPECT_THROW(gemm(m.stream, {.d = d, .a = {a, false, one + 1}, .b = {a, false, one}}), Error);
  EXPECT_THROW(gemm(m.stream, {.d = d, .a = {e, false, one}, .b = {e, false, one}}), Error);
  EXPECT_THROW(gemm(m.stream, {.d = d, .a = {odd, false, one}, .b = {odd, false, one}}), Error);
  EXPECT_THROW(gemm(m.stream, {.d = d, .a = {a, false, one}, .b = {m.tensor(DType::bf16, {16, 32})}}), Error);
}

}  // namespace
}  // namespace octet::gpu
