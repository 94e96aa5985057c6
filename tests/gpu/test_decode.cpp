// The operations of generation on the GPU against double precision on the CPU: every head size and grouping, sequences
// of unequal lengths, windows, one and many parts of split-KV; repeated runs give the same bits. attention_step equals
// its three operations.
#define BACKEND gpu
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "ops/decode.h"
#include "ops/workspace.h"

namespace octet::gpu {
namespace {

using Doubles = std::vector<double>;

class Decode : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_available()) GTEST_SKIP() << "no GPU";
    device_ = std::make_unique<Device>(Device::Options{});
    stream_ = std::make_unique<Stream>(*device_);
  }
  void TearDown() override {
    for (void* p : memory_) device_free(*device_, p);
  }
  Tensor empty(DType t, Shape shape) {  // NaN
    Tensor x{nullptr, t, shape};
    memory_.push_back(x.data = device_alloc(*device_, std::max<size_t>(256, x.bytes())));
    fill_byte(*stream_, x.data, 0xff, x.bytes());
    return x;
  }
  template <class T>
  Tensor put(const std::vector<T>& v, Shape shape) {
    Tensor x = empty(dtype_of<T>, shape);
    copy_to_device(*stream_, x.data, v.data(), x.bytes());
    stream_->synchronize();
    return x;
  }
  Tensor put(DType t, const Doubles& v, Shape shape) {
    if (t == DType::f32) return put(std::vector<float>(v.begin(), v.end()), shape);
    std::vector<bf16> narrow;
    for (double d : v) narrow.push_back(bf16(float(d)));
    return put(narrow, shape);
  }
  std::vector<char> bytes(Tensor x) {
    std::vector<char> b(x.bytes());
    copy_to_host(*stream_, b.data(), x.data, b.size());
    stream_->synchronize();
    return b;
  }
  Doubles get(Tensor x) {
    const std::vector<char> b = bytes(x);
    Doubles v(size_t(x.numel()));
    for (size_t i = 0; i < v.size(); ++i)
      v[i] = x.dtype == DType::bf16 ? double(float(reinterpret_cast<const bf16*>(b.data())[i]))
                                    : double(reinterpret_cast<const float*>(b.data())[i]);
    return v;
  }
  static Doubles drawn(size_t n, uint64_t stream, DType t) {  // as type t stores them
    Doubles x(n);
    for (size_t i = 0; i < n; ++i) {
      const float v = float(normal(11, stream, i));
      x[i] = double(t == DType::bf16 ? float(bf16(v)) : v);
    }
    return x;
  }
  Tensor workspace(const Heads& h, int64_t B) {
    const Tensor w = empty(DType::e4m3, {attention_decode_workspace(stream_->target(), h, B)});
    fill_zero(*stream_, w);
    return w;
  }
  static double distance(const Doubles& x, const Doubles& y) {
    double error = 0, norms = 0;
    for (size_t i = 0; i < x.size(); ++i) error += (x[i] - y[i]) * (x[i] - y[i]), norms += x[i] * x[i] + y[i] * y[i];
    return norms > 0 ? error / norms : 0;
  }
  void check(const Heads& h, const std::vector<int32_t>& lengths, int64_t window, DType type);
  void check_step(const DecodeAttention& a, Tensor qkv, Tensor unrotated);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<void*> memory_;
};

// lengths: keys of each sequence, the last of which kv_append brings.
void Decode::check(const Heads& h, const std::vector<int32_t>& lengths, int64_t window, DType type) {
  const int64_t B = int64_t(lengths.size()), longest = *std::max_element(lengths.begin(), lengths.end()),
                S = longest + 5;
  const int64_t W = h.width(), D = h.D;
  SCOPED_TRACE(concat("H ", h.H, ", G ", h.G, ", D ", D, ", B ", B, ", longest ", longest, ", window ", window, ", ",
                      name_of(type)));
  const Shape shape{B, h.G, S, D};
  Doubles k = drawn(size_t(shape.numel()), 1, type), v = drawn(size_t(shape.numel()), 2, type);
  const Doubles qkv = drawn(size_t(B * W), 3, type);
  const KvRows kv{put(type, k, shape), put(type, v, shape)};
  std::vector<int32_t> last;
  for (int32_t n : lengths) last.push_back(n - 1);
  const Tensor position = put(last, {B}), x = put(type, qkv, {B, W});
  kv_append(*stream_, {.kv = kv, .heads = h, .start = position}, x);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t g = 0; g < h.G; ++g)
      for (int64_t d = 0; d < D; ++d) {
        const size_t at = size_t(((b * h.G + g) * S + lengths[size_t(b)] - 1) * D + d);
        k[at] = qkv[size_t(b * W + h.k(g) + d)], v[at] = qkv[size_t(b * W + h.v(g) + d)];
      }
  EXPECT_EQ(get(kv.k), k);
  EXPECT_EQ(get(kv.v), v);

  const double scale = 1 / std::sqrt(double(D));
  Doubles want(size_t(B * h.H * D));
  for (int64_t b = 0; b < B; ++b)
    for (int64_t head = 0; head < h.H; ++head) {
      const int64_t g = head / (h.H / h.G), keys = lengths[size_t(b)],
                    begin = window ? std::max<int64_t>(0, keys - window) : 0;
      Doubles p;
      double top = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t j = begin; j < keys; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < D; ++d)
          dot += qkv[size_t(b * W + h.q(head) + d)] * k[size_t(((b * h.G + g) * S + j) * D + d)];
        top = std::max(top, p.emplace_back(dot * scale));
      }
      for (double& w : p) sum += w = std::exp(w - top);
      for (int64_t j = begin; j < keys; ++j)
        for (int64_t d = 0; d < D; ++d)
          want[size_t((b * h.H + head) * D + d)] +=
              p[size_t(j - begin)] / sum * v[size_t(((b * h.G + g) * S + j) * D + d)];
    }
  const DecodeAttention a{
      .kv = kv, .heads = h, .position = position, .window = window, .scale = scale, .workspace = workspace(h, B)};
  const auto run = [&] {
    const Tensor o = empty(type, {B, h.H * h.D});
    attention_decode(*stream_, o, x, a);
    return o;
  };
  const Tensor one = run(), two = run();
  const Doubles got = get(one);
  EXPECT_EQ(bytes(one), bytes(two));
  check_step(a, x, two);
  EXPECT_LT(distance(got, want), type == DType::f32 ? 1e-12 : 1e-5);
}

// attention_step equals rope_forward, kv_append and attention_decode one after the other, and changes nothing else.
// With all of the head rotated, a quarter of it, and rotary dimensions that do not fit vectors of 8.
void Decode::check_step(const DecodeAttention& a, Tensor qkv, Tensor unrotated) {
  const int64_t B = qkv.rows(), S = a.kv.k.shape[2], D = a.heads.D;
  for (const int64_t half : {D / 2, D / 4, D / 16 * 8, int64_t{0}}) {
    if (half == 0 && D > 16) continue;
    SCOPED_TRACE(concat("turning ", half, " pairs"));
    std::vector<float> angles;
    for (int64_t i = 0; i < S * half; ++i) angles.push_back(std::cos(float(i))), angles.push_back(std::sin(float(i)));
    const Tensor table = put(angles, {S, half, 2});
    const auto copy_of = [&](Tensor t) {
      const Tensor y = empty(t.dtype, t.shape);
      copy(*stream_, y, t);
      return y;
    };
    DecodeAttention apart = a, step = a;
    apart.kv = {copy_of(a.kv.k), copy_of(a.kv.v)}, step.kv = {copy_of(a.kv.k), copy_of(a.kv.v)};
    const Tensor rotated = copy_of(qkv), want = empty(qkv.dtype, {B, a.heads.H * D}),
                 got = empty(qkv.dtype, want.shape);
    rope_forward(*stream_, rotated, {.table = table, .heads = a.heads, .start = a.position});
    kv_append(*stream_, {.kv = apart.kv, .heads = a.heads, .start = a.position}, rotated);
    attention_decode(*stream_, want, rotated, apart);
    attention_step(*stream_, got, copy_of(qkv), table, step);
    const double bound = qkv.dtype == DType::f32 ? 1e-12 : 1e-5;
    EXPECT_LT(distance(get(got), get(want)), bound);
    EXPECT_LT(distance(get(step.kv.k), get(apart.kv.k)), bound);
    EXPECT_EQ(bytes(step.kv.v), bytes(apart.kv.v));
    if (half == 0) { EXPECT_LT(distance(get(got), get(unrotated)), bound); }
    const Tensor again = empty(qkv.dtype, want.shape), same = copy_of(qkv);
    step.cache_ready = true;
    stream_->synchronize();
    attention_step(*stream_, again, same, table, step);
    EXPECT_EQ(bytes(again), bytes(got));
  }
}

TEST_F(Decode, EveryHeadSizeAndGrouping) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const int64_t D : {8, 16, 40, 64, 80, 96, 128, 256})
      for (const auto& [H, G] : {std::pair{4, 4}, {4, 2}, {6, 2}, {7, 1}, {16, 2}, {24, 2}})
        check({.H = H, .G = G, .D = D}, {37, 2, 300}, 0, type);
}
TEST_F(Decode, ManyPartsAndUnequalLengths) {
  for (const DType type : {DType::f32, DType::bf16}) {
    check({.H = 32, .G = 4, .D = 64}, {3000}, 0, type);
    check({.H = 32, .G = 8, .D = 128}, {4097, 2, 64, 65, 1000}, 0, type);
    check({.H = 8, .G = 8, .D = 64, .interleaved = true}, {700, 1500}, 0, type);
  }
}
TEST_F(Decode, Windows) {
  for (const int64_t window : {1, 5, 64, 500, 10000}) {
    check({.H = 8, .G = 2, .D = 64}, {1200, 3, 90}, window, DType::f32);
    check({.H = 4, .G = 4, .D = 128}, {2000}, window, DType::bf16);
  }
}

// Many steps, each of which may begin while the previous ones run: reading too early would show.
TEST_F(Decode, StepsFollowEachOther) {
  const Heads h{.H = 8, .G = 2, .D = 64};
  const int64_t B = 2, S = 300, steps = 250, W = h.width();
  std::vector<float> angles;
  for (int64_t i = 0; i < S * 32; ++i) angles.push_back(std::cos(float(i))), angles.push_back(std::sin(float(i)));
  const Tensor table = put(angles, {S, 32, 2});
  const Tensor rows = put(DType::bf16, drawn(size_t(steps * B * W), 5, DType::bf16), {steps, B * W});
  struct Way {
    DecodeAttention attention;
    Tensor o;
  };
  const auto way = [&](bool cache_ready) {
    const Shape cache{B, h.G, S, h.D};
    return Way{{.kv = {empty(DType::bf16, cache), empty(DType::bf16, cache)},
                .heads = h,
                .position = put(std::vector<int32_t>{-1, 17}, {B}),
                .scale = 0.125,
                .cache_ready = cache_ready,
                .workspace = workspace(h, B)},
               empty(DType::bf16, {steps, B * h.H * h.D})};
  };
  const Way unfused = way(false), fused = way(true);
  for (const Way* w : {&unfused, &fused})  // what stands before the second sequence's first token
    for (const Tensor t : {w->attention.kv.k, w->attention.kv.v}) fill_zero(*stream_, t);
  const Tensor x = empty(DType::bf16, {B, W});
  stream_->synchronize();
  for (const Way* w : {&unfused, &fused})
    for (int64_t i = 0; i < steps; ++i) {
      const DecodeAttention& a = w->attention;
      const Tensor o = w->o.row_range(i, 1).as(DType::bf16, {B, h.H * h.D});
      advance(*stream_, a.position);
      copy(*stream_, x, rows.row_range(i, 1));
      if (a.cache_ready) {
        attention_step(*stream_, o, x, table, a);
        continue;
      }
      rope_forward(*stream_, x, {.table = table, .heads = h, .start = a.position});
      kv_append(*stream_, {.kv = a.kv, .heads = h, .start = a.position}, x);
      attention_decode(*stream_, o, x, a);
    }
  EXPECT_LT(distance(get(fused.o), get(unfused.o)), 1e-5);
  EXPECT_LT(distance(get(fused.attention.kv.k), get(unfused.attention.kv.k)), 1e-5);
  EXPECT_EQ(bytes(fused.attention.kv.v), bytes(unfused.attention.kv.v));
}

// In one kernel (bf16, few rows) as in three.
TEST_F(Decode, ANormedProductIsTheNormTheProductAndTheGate) {
  struct Size {
    int64_t N, C, O;
  };
  for (const DType type : {DType::f32, DType::bf16})
    for (const Size& z : {Size{1, 2048, 256},
                          {3, 40, 48},
                          {8, 296, 34},
                          {13, 1000, 72},
                          {16, 520, 18000},
                          {5, 64, 9000},
                          {17, 64, 32},
                          {2, 8200, 32}})
      for (const bool gated : {false, true})
        for (const DType out : {type, DType::f32}) {
          if (gated && out != type) continue;
          SCOPED_TRACE(
              concat(z.N, "x", z.O, "x", z.C, " ", name_of(type), " to ", name_of(out), gated ? " gated" : ""));
          const Doubles xs = drawn(size_t(z.N * z.C), 1, type), ns = drawn(size_t(z.C), 2, type);
          Doubles ws = drawn(size_t(z.O * z.C), 3, DType::f32), want;
          for (double& w : ws) w = double(float(w / std::sqrt(double(z.C))));
          if (type == DType::bf16)
            for (double& w : ws) w = double(float(bf16(float(w))));
          const Tensor y = empty(out, {z.N, gated ? z.O / 2 : z.O});
          normed_product(*stream_, {.y = y,
                                    .x = put(type, xs, {z.N, z.C}),
                                    .norm = put(type, ns, {z.C}),
                                    .w = put(type, ws, {z.O, z.C}),
                                    .eps = 0.1,
                                    .gated = gated,
                                    .normed = empty(type, {z.N, z.C}),
                                    .rstd = empty(DType::f32, {z.N}),
                                    .product = empty(type, {z.N, z.O})});
          for (int64_t n = 0; n < z.N; ++n) {
            double squares = 0.1 * double(z.C);
            for (int64_t c = 0; c < z.C; ++c) squares += xs[size_t(n * z.C + c)] * xs[size_t(n * z.C + c)];
            const auto product = [&](int64_t o) {
              double sum = 0;
              for (int64_t c = 0; c < z.C; ++c)
                sum += xs[size_t(n * z.C + c)] * ns[size_t(c)] * ws[size_t(o * z.C + c)];
              return sum / std::sqrt(squares / double(z.C));
            };
            for (int64_t o = 0; o < y.cols(); ++o) {
              const double p = product(o);
              want.push_back(gated ? p / (1 + std::exp(-p)) * product(z.O / 2 + o) : p);
            }
          }
          EXPECT_LT(distance(get(y), want), type == DType::f32 ? 1e-11 : 2e-5);
        }
}

TEST_F(Decode, AdvanceCountsEveryPosition) {
  const Tensor position = put(std::vector<int32_t>{4, -1, 7}, {3});
  advance(*stream_, position.part(0, {2}));
  advance(*stream_, position.part(0, {2}));
  const std::vector<char> b = bytes(position);
  EXPECT_EQ(
      std::vector<int32_t>(reinterpret_cast<const int32_t*>(b.data()), reinterpret_cast<const int32_t*>(b.data()) + 3),
      (std::vector<int32_t>{6, 1, 7}));
}

TEST_F(Decode, ArgmaxIsTheFirstOfTheLargestWithoutPadding) {
  const int64_t N = 8, V = 32128, vocabulary = 32003;
  std::vector<float> x(size_t(N * V));
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(normal(3, 1, i));
  for (int64_t n = 0; n < N; ++n)
    for (int64_t i = vocabulary; i < V; ++i) x[size_t(n * V + i)] = 100;
  x[size_t(1 * V + 17)] = x[size_t(1 * V + 20000)] = 50;
  x[size_t(2 * V)] = 60;
  x[size_t(3 * V + vocabulary - 1)] = 70;
  for (int64_t i = 0; i < vocabulary; ++i) x[size_t(4 * V + i)] = -std::numeric_limits<float>::infinity();
  std::vector<int32_t> want;
  for (int64_t n = 0; n < N; ++n) {
    const auto row = x.begin() + n * V;
    want.push_back(int32_t(std::max_element(row, row + vocabulary) - row));
  }
  x[size_t(6 * V + vocabulary)] = x[size_t(7 * V + 31999)] = NAN;  // of the padding, and one that is to be told
  const Tensor index = empty(DType::i32, {N}), largest = empty(DType::f32, {N});
  argmax(*stream_, index, largest, put(x, {N, V}), vocabulary);
  const std::vector<char> b = bytes(index), l = bytes(largest);
  for (int64_t n = 0; n < N; ++n) {
    const int32_t at = reinterpret_cast<const int32_t*>(b.data())[n];
    const float value = reinterpret_cast<const float*>(l.data())[n];
    if (n == 7) EXPECT_TRUE(std::isnan(value) && uint32_t(at) < uint32_t(vocabulary)) << value << ' ' << at;
    else EXPECT_TRUE(at == want[size_t(n)] && value == x[size_t(n * V + at)]) << n << ' ' << at << ' ' << value;
  }
}

TEST_F(Decode, RopeRotatesEachSequenceFromItsOwnStart) {
  const Heads h{.H = 4, .G = 2, .D = 64};
  const int64_t R = 32, positions = 90;
  std::vector<float> table;
  for (int64_t i = 0; i < positions * R / 2; ++i)
    table.push_back(std::cos(float(i))), table.push_back(std::sin(float(i)));
  const Tensor angles = put(table, {positions, R / 2, 2});
  const std::vector<int32_t> start{70, 0, 33};
  const Doubles values = drawn(size_t(6 * h.width()), 4, DType::f32);
  const Tensor all = put(DType::f32, values, {6, h.width()}), one = put(DType::f32, values, {6, h.width()});
  rope_forward(*stream_, all, {.table = angles, .heads = h, .T = 2, .first = 5, .start = put(start, {3})});
  for (int64_t b = 0; b < 3; ++b)
    rope_forward(*stream_, one.row_range(2 * b, 2),
                 {.table = angles, .heads = h, .T = 2, .first = 5 + start[size_t(b)]});
  EXPECT_EQ(bytes(all), bytes(one));
  EXPECT_NE(get(all), values);
}

}  // namespace
}  // namespace octet::gpu
