// Scales of experts: one of a layer, or one each, whose products are those of a plain loop over experts; an expert
// without rows leaves its scales alone, and one that comes late borrows.
#include <gtest/gtest.h>

#include "config/config.h"
#include "cpu/lab.h"
#include "nn/experts.h"
#include "precision/options.h"

namespace octet::BACKEND {
namespace {

constexpr int64_t I = 32, O = 16, E = 3;
using Matrix = std::vector<double>;

class Experts {
 public:
  explicit Experts(bool per_expert, const std::vector<std::string>& more = {}) : config_(config(per_expert, more)) {
    params_.materialise(lab.stream(), arenas_, 1);
    scaling.materialise(lab.stream(), arenas_[Memory::weights]);
    params_.for_each([&](const std::string& name, Shape, const ParameterStore::Local& l) {
      for (int64_t i = 0; i < l.master.numel(); ++i)
        l.master.ptr<float>()[i] = float(0.1 * normal(5, hash(name), uint64_t(i)));
      weights.emplace_back(l.master.ptr<float>(), l.master.ptr<float>() + l.master.numel());
    });
    params_.publish(lab.stream(), ParameterStore::Masters::changed);
  }

  // x, dy: rows of each expert, a multiple of 32. Of a micro-batch: y, dx, and the gradients of each expert's weights.
  struct Products {
    Matrix y, dx;
    std::vector<Matrix> dw;
  };
  Products run(const std::vector<Matrix>& x, const std::vector<Matrix>& dy) {
    ExpertBuffer rows;
    rows.first = {0};
    for (const Matrix& m : x) rows.first.push_back(rows.first.back() + int64_t(m.size()) / I);
    rows.offset = lab.of(std::vector<int32_t>(rows.first.begin(), rows.first.end()));
    const int64_t used = rows.first.back(), R = used + 32;  // with rows that nobody reads
    Context c{.stream = lab.stream(),
              .params = params_,
              .scaling = scaling,
              .saved = arenas_[Memory::saved],
              .scratch = arenas_[Memory::scratch]};
    const auto lease = params_.acquire(lab.stream(), 0, Use::backward);
    params_.zero_gradients(lab.stream());
    const Tensor y = lab.empty(DType::f32, {R, O}), dx = lab.empty(DType::f32, {R, I});
    const auto fill = [&](Operand o, int64_t columns, const std::vector<Matrix>& from) {
      if (!o.plain) o.plain = lab.empty(DType::f32, {R, columns});
      fill_zero(lab.stream(), o.plain);
      int64_t i = 0;
      for (const Matrix& m : from)
        for (double v : m) o.plain.ptr<float>()[i++] = float(v);
      return o;
    };
    const Operand xe = fill(layer_.input(c, R), I, x);
    layer_.complete(c, xe, rows);
    layer_.forward(c, y, xe, rows);
    const Operand d = fill(layer_.output_grad(c, R), O, dy);
    layer_.complete(c, d, rows);
    layer_.backward(c, dx, d, rows);
    Products p{values(y.row_range(0, used)), values(dx.row_range(0, used)), {}};
    params_.for_each(
        [&](const std::string&, Shape, const ParameterStore::Local& l) { p.dw.push_back(values(l.grad)); });
    c.saved.reset(), c.scratch.reset();
    return p;
  }
  void update() { scaling.update(lab.stream(), nullptr, {}); }
  float scale(int64_t e, const char* of) const {
    const std::string name = concat("experts.", e, ".weight", of);
    for (int i = 0; i < scaling.size(); ++i)
      if (scaling.names()[size_t(i)] == name) return *scaling.unmeasured(i).scale;
    throw Error("no scale of " + name);
  }

 private:
  static RunConfig config(bool per_expert, const std::vector<std::string>& more) {
    std::vector<std::string> all{"fp8.enabled=true", "fp8.amax_history_len=4",
                                 concat("fp8.moe_per_expert_scales=", per_expert ? "true" : "false")};
    all.insert(all.end(), more.begin(), more.end());
    return parse_config(R"({
      "device": "cpu",
      "model": {"model_type": "mixtral", "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48,
                "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 3},
      "training": {"steps": 1, "global_batch_size": 1, "micro_batch_size": 1, "seq_len": 32},
      "precision": {"param_dtype": "fp32"}})",
                        "experts", all);
  }
  static std::vector<std::vector<ParameterStore::Part>> parts() {
    std::vector<std::vector<ParameterStore::Part>> all;
    for (int64_t e = 0; e < E; ++e) all.push_back({{concat("experts.", e, ".weight"), {O, I}}});
    return all;
  }
  static MemoryPlan memory() {
    MemoryPlan plan;
    plan.bytes.fill(size_t{1} << 22);
    return plan;
  }

  RunConfig config_;
  LoneHost host_;
  Device device_{Device::Options{.poison = true}};
  Stream side_{device_, Stream::Priority::high};
  std::unique_ptr<Comm> comm_ = make_comm(device_, host_);

 public:
  Lab lab;
  std::vector<Matrix> weights;

 private:
  Arenas arenas_{lab.stream(), memory()};
  Recipe recipe_ = make_recipe(config_);

 public:
  DelayedScaling scaling{activation_scaling(config_)};

 private:
  ParameterStore params_{*comm_, nullptr, side_, {.weight_scaling = weight_scaling(config_)}};
  int unit_ = params_.begin_unit("experts", Buffers::own);
  ExpertLinear layer_{{params_, scaling, recipe_}, parts(), {}};
};

Matrix normals(int64_t rows, int64_t columns, double size, uint64_t stream) {
  Matrix m;
  for (int64_t i = 0; i < rows * columns; ++i) m.push_back(double(float(size * normal(3, stream, uint64_t(i)))));
  return m;
}
// What a cast with a scale of its own makes of it.
template <class F8>
Matrix cast(const Matrix& m, float largest) {
  float amax = 0;
  for (double v : m) amax = std::max(amax, float(std::abs(v)));
  const float scale = largest / amax;
  Matrix q;
  for (double v : m) q.push_back(double(float(F8(float(v) * scale))) / double(scale));
  return q;
}
// d (M,N) = a (M,K) b (K,N), either read transposed.
Matrix times(const Matrix& a, bool turn_a, const Matrix& b, bool turn_b, int64_t M, int64_t N) {
  const int64_t K = int64_t(a.size()) / M;
  Matrix d;
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < K; ++k)
        sum += a[size_t(turn_a ? k * M + m : m * K + k)] * b[size_t(turn_b ? n * K + k : k * N + n)];
      d.push_back(sum);
    }
  return d;
}
double relative(const Matrix& got, const Matrix& want) {
  EXPECT_EQ(got.size(), want.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) error += (got[i] - want[i]) * (got[i] - want[i]), size += want[i] * want[i];
  return std::sqrt(error / size);
}
Matrix rows(const Matrix& m, int64_t first, int64_t count, int64_t columns) {
  return {m.begin() + first * columns, m.begin() + (first + count) * columns};
}

// Expert 0 sees values ten million times smaller than expert 2; expert 1 none.
const std::vector<Matrix> kX{normals(32, I, 1e-5, 1), {}, normals(64, I, 100, 2)};
const std::vector<Matrix> kDy{normals(32, O, 1e-9, 3), {}, normals(64, O, 1e-1, 4)};

TEST(ExpertScales, OfItsOwnGiveEachExpertTheProductsOfAPlainLoop) {
  Experts experts(true);
  const auto p = experts.run(kX, kDy);
  int64_t first = 0;
  for (const size_t e : {0u, 2u}) {
    const int64_t n = int64_t(kX[e].size()) / I;
    const Matrix x = cast<e4m3>(kX[e], 448), dy = cast<e5m2>(kDy[e], 57344), w = cast<e4m3>(experts.weights[e], 448);
    EXPECT_LT(relative(rows(p.y, first, n, O), times(x, false, w, true, n, O)), 1e-5) << e;
    EXPECT_LT(relative(rows(p.dx, first, n, I), times(dy, false, w, false, n, I)), 1e-5) << e;
    EXPECT_LT(relative(p.dw[e], times(dy, true, x, false, O, I)), 1e-5) << e;
    EXPECT_LT(relative(rows(p.y, first, n, O), times(kX[e], false, experts.weights[e], true, n, O)), 0.1) << e;
    first += n;
  }
  for (double v : p.dw[1]) EXPECT_EQ(v, 0);
}

TEST(ExpertScales, OfALayerLoseWhatIsSmallBesideAnotherExperts) {
  Experts experts(false);
  const auto p = experts.run(kX, kDy);
  for (double v : rows(p.y, 0, 32, O)) EXPECT_EQ(v, 0);
  for (double v : p.dw[0]) EXPECT_EQ(v, 0);
  EXPECT_LT(relative(rows(p.y, 32, 64, O), times(kX[2], false, experts.weights[2], true, 64, O)), 0.1);
}

TEST(ExpertScales, AnExpertWithoutRowsLeavesThemAloneAndOneThatComesLateInheritsOne) {
  for (const char* length : {"fp8.amax_history_len=4", "fp8.amax_history_len=1"}) {
    Experts experts(true, {length});
    experts.run(kX, kDy);
    experts.update();
    const auto largest = [](const Matrix& m) {
      float amax = 0;
      for (double v : m) amax = std::max(amax, float(std::abs(v)));
      return amax;
    };
    for (const int64_t e : {0, 2}) {
      EXPECT_EQ(experts.scale(e, ".x"), 448 / largest(kX[size_t(e)])) << e;
      EXPECT_EQ(experts.scale(e, ".dy"), 57344 / largest(kDy[size_t(e)])) << e;
    }
    EXPECT_EQ(experts.scale(1, ".x"), experts.scale(2, ".x")) << length;  // the smallest of its layer's
    EXPECT_EQ(experts.scale(1, ".dy"), experts.scale(2, ".dy")) << length;
    const float before = experts.scale(2, ".x");
    const std::vector<Matrix> x{normals(32, I, 1e-5, 5), normals(32, I, 2, 6), {}},
        dy{kDy[0], normals(32, O, 0.01, 7), {}};
    const auto p = experts.run(x, dy);  // expert 1 for the first time, 2 without rows
    EXPECT_LT(relative(rows(p.y, 32, 32, O), times(x[1], false, experts.weights[1], true, 32, O)), 0.1) << length;
    experts.update();
    EXPECT_EQ(experts.scale(1, ".x"), 448 / largest(x[1])) << length;
    EXPECT_EQ(experts.scale(2, ".x"), before) << length;
  }
}

}  // namespace
}  // namespace octet::BACKEND
