// A mixture of experts against a plain loop over tokens: any numbers of tokens an expert, ties, and its derivatives,
// the choice of experts held fixed.
#include <algorithm>

#include "cpu/whole_model.h"
#include "nn/moe.h"

namespace octet::BACKEND {
namespace {

using Choice = std::vector<std::vector<int>>;  // the experts of each token, best first

std::vector<double> preferring(const Choice& choice, int64_t E) {
  std::vector<double> logits;
  for (const auto& experts : choice)
    for (int e = 0; e < E; ++e) {
      const auto at = std::find(experts.begin(), experts.end(), e);
      logits.push_back(at == experts.end() ? 0 : 10 - double(at - experts.begin()));
    }
  return logits;
}

class MoeLab {
 public:
  static constexpr int64_t C = 8, F = 6;
  MoeLab(int64_t N, int64_t E, int64_t K, double jitter = 0, int64_t layer = 0)
      : moe_(
            {params_, scaling_, recipe_},
            {.layer = layer, .channels = C, .width = F, .experts = E, .per_token = K, .jitter = jitter, .name = "moe"}),
        arenas_(stream_, memory()),
        N_(N),
        E_(E),
        K_(K) {
    params_.materialise(stream_, arenas_, 1);
    scaling_.materialise(stream_, arenas_[Memory::weights]);
    params_.for_each([&](const std::string& name, Shape, const ParameterStore::Local& l) {
      for (int64_t i = 0; i < l.master.numel(); ++i)
        l.master.ptr<double>()[i] = 0.4 * normal(5, hash(name), uint64_t(i));
    });
    x_ = lab_.normal(DType::f64, {N, C}), residual_ = lab_.normal(DType::f64, {N, C}),
    dy_ = lab_.normal(DType::f64, {N, C});
    y_ = lab_.empty(DType::f64, {N, C}), dx_ = lab_.empty(DType::f64, {N, C}), sums_ = lab_.empty(DType::f64, {3, E}),
    total_ = lab_.empty(DType::f64, {3, E});
    load_ = lab_.zeros(DType::f64, {1, E});
  }
  void choose(const Choice& choice) { choice_ = preferring(choice, E_); }

  // <dy, y> + coefficient * (balancing loss + z-loss / 2); with its gradients.
  double run(double coefficient = 0) {
    params_.publish(stream_, ParameterStore::Masters::changed);
    const auto lease = params_.acquire(stream_, 0, Use::backward), experts = params_.acquire(stream_, 1, Use::backward);
    params_.zero_gradients(stream_);
    arenas_[Memory::saved].reset(), arenas_[Memory::scratch].reset();
    fill_zero(stream_, sums_);
    Context c{.stream = stream_,
              .params = params_,
              .scaling = scaling_,
              .saved = arenas_[Memory::saved],
              .scratch = arenas_[Memory::scratch],
              .B = 1,
              .T = N_};
    c.routers.sums = sums_;
    if (!choice_.empty()) c.routers.choice = {choice_.data(), DType::f64, {int64_t(choice_.size())}};
    const Operand x = moe_.input(c, N_);
    copy(stream_, x.plain, x_);
    moe_.forward(c, y_, x, residual_);
    double losses[2] = {};
    const double N = double(N_), balance = double(E_) / (N * N);
    moe_losses(stream_, {.losses = {losses, DType::f64, {2}},
                         .total = total_,
                         .load = load_,
                         .sums = sums_,
                         .balance = balance,
                         .z = 1 / N});
    c.routers.total = total_;
    c.routers.balance = coefficient * balance;
    c.routers.z = 0.5 * coefficient / N;
    copy(stream_, dx_, moe_.backward(c, dy_));
    return dot(dy_, y_) + coefficient * (losses[0] + 0.5 * losses[1]);
  }
  // What the layer reads of an x of ones.
  std::vector<double> noise(uint64_t seed, Pass pass) {
    params_.publish(stream_, ParameterStore::Masters::changed);
    const Use use = pass == Pass::evaluate ? Use::evaluate : Use::forward;
    const auto lease = params_.acquire(stream_, 0, use), experts = params_.acquire(stream_, 1, use);
    arenas_[Memory::saved].reset(), arenas_[Memory::scratch].reset();
    Context c{.stream = stream_,
              .params = params_,
              .scaling = scaling_,
              .saved = arenas_[Memory::saved],
              .scratch = arenas_[Memory::scratch],
              .pass = pass,
              .B = 1,
              .T = N_};
    c.routers.seed = seed;
    const Operand x = moe_.input(c, N_);
    std::fill_n(x.plain.ptr<double>(), x.plain.numel(), 1.);
    moe_.forward(c, y_, x, residual_);
    return values(x.plain);
  }
  Tensor x() const { return x_; }
  Tensor y() const { return y_; }
  Tensor dx() const { return dx_; }
  std::vector<double> of(const std::string& name, bool gradient) {
    std::vector<double> v;
    params_.for_each([&](const std::string& n, Shape, const ParameterStore::Local& l) {
      if (n == name) v = values(gradient ? l.grad : l.master);
    });
    return v;
  }
  std::vector<Variable> variables() {  // with copies of their gradients
    kept_.clear();
    std::vector<Variable> all;
    const auto add = [&](const std::string& name, Tensor value, Tensor gradient) {
      kept_.push_back(values(gradient));
      all.push_back({name, span_of(value), kept_.back()});
    };
    add("x", x_, dx_);
    params_.for_each([&](const std::string& name, Shape, const ParameterStore::Local& l) {
      if (std::any_of(l.grad.ptr<double>(), l.grad.ptr<double>() + l.grad.numel(), [](double g) { return g != 0; }))
        add(name, l.master, l.grad);
    });
    return all;
  }

  // Token by token, as the paper has it.
  std::vector<double> reference(const Choice& choice) {
    const auto gate = of("moe.gate.weight", false), x = values(x_);
    std::vector<double> y = values(residual_);
    for (size_t n = 0; n < size_t(N_); ++n) {
      const double* xn = &x[n * C];
      const auto row = [&](const std::vector<double>& w, size_t r, const double* v, size_t width) {
        double sum = 0;
        for (size_t i = 0; i < width; ++i) sum += w[r * width + i] * v[i];
        return sum;
      };
      double all = 0;
      for (int e : choice[n]) all += std::exp(row(gate, size_t(e), xn, C));
      for (int e : choice[n]) {
        const std::string expert = concat("moe.experts.", e);
        const auto w1 = of(expert + ".w1.weight", false), w2 = of(expert + ".w2.weight", false),
                   w3 = of(expert + ".w3.weight", false);
        double h[F];
        for (size_t f = 0; f < F; ++f) {
          const double g = row(w1, f, xn, C);
          h[f] = g / (1 + std::exp(-g)) * row(w3, f, xn, C);
        }
        for (size_t c = 0; c < C; ++c) y[n * C + c] += std::exp(row(gate, size_t(e), xn, C)) / all * row(w2, c, h, F);
      }
    }
    return y;
  }

 private:
  static MemoryPlan memory() {
    MemoryPlan m;
    m.bytes.fill(size_t{4} << 20);
    return m;
  }
  Device device_{{.poison = true}};
  Stream stream_{device_};
  LoneHost host_;
  std::unique_ptr<Comm> comm_ = make_comm(device_, host_);
  ParameterStore params_{
      *comm_, nullptr, stream_, {.plain = DType::f64, .master = DType::f64, .moment = DType::f64, .grad = DType::f64}};
  DelayedScaling scaling_{{}};
  Recipe recipe_;
  int unit_ = params_.begin_unit("moe", Buffers::own);
  Moe moe_;
  Arenas arenas_;
  Lab lab_;
  int64_t N_, E_, K_;
  Tensor x_, y_, residual_, dy_, dx_, sums_, total_, load_;
  std::vector<double> choice_;
  std::deque<std::vector<double>> kept_;
};

// 17 tokens choose expert 3 and, each by its number, another: experts with 0, 1, 15 and 17 tokens.
Choice uneven() {
  Choice choice;
  for (int n = 0; n < 17; ++n) choice.push_back({3, n == 4 ? 1 : n == 9 ? 4 : 2});
  return choice;
}
Choice all_to(std::vector<int> experts, int N) { return Choice(size_t(N), experts); }

void expect_equal(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-12) << i;
}

}  // namespace

TEST(Moe, ForwardIsThePlainLoop) {
  MoeLab lab(17, 6, 2);
  for (const Choice& choice : {uneven(), all_to({5, 0}, 17), all_to({0, 5}, 17)}) {
    lab.choose(choice);
    lab.run();
    expect_equal(values(lab.y()), lab.reference(choice));
  }
}

TEST(Moe, AllTokensToOneExpert) {
  MoeLab lab(33, 4, 1);
  lab.choose(all_to({2}, 33));
  lab.run();
  expect_equal(values(lab.y()), lab.reference(all_to({2}, 33)));
}

TEST(Moe, AnExpertWithoutTokensHasAGradientOfExactlyZero) {
  MoeLab lab(17, 6, 2);
  Choice even;
  for (int n = 0; n < 17; ++n) even.push_back({n % 6, (n + 1) % 6});
  lab.choose(even);
  lab.run(0.3);
  lab.choose(uneven());  // after a step in which each expert had tokens
  lab.run(0.3);
  for (const char* matrix : {".w1.weight", ".w2.weight", ".w3.weight"})
    for (int e = 0; e < 6; ++e) {
      const auto g = lab.of(concat("moe.experts.", e, matrix), true);
      const bool empty = e == 0 || e == 5;
      EXPECT_EQ(std::all_of(g.begin(), g.end(), [](double v) { return v == 0; }), empty) << e << matrix;
    }
}

TEST(Moe, BackwardIsTheDerivativeForAnyNumbersOfTokens) {
  MoeLab lab(17, 6, 2);
  for (const Choice& choice : {uneven(), all_to({5, 0}, 17)}) {
    lab.choose(choice);
    lab.run(0.7);
    expect_derivative(lab.variables(), [&] { return lab.run(0.7); }, {.samples = 40});
  }
  MoeLab single(5, 3, 1);
  single.choose({{0}, {2}, {0}, {0}, {2}});
  single.run(0.7);
  expect_derivative(single.variables(), [&] { return single.run(0.7); }, {.samples = 40});
}

TEST(Moe, JitterIsOfTheMicroBatchAndTheLayerTheSameWhenRecomputedAndNoneInEvaluation) {
  MoeLab first(5, 3, 2, 0.1, 0), second(5, 3, 2, 0.1, 1);
  const std::vector<double> noise = first.noise(7, Pass::train), none(noise.size(), 1.);
  EXPECT_EQ(noise, first.noise(7, Pass::recompute));
  EXPECT_NE(noise, first.noise(8, Pass::train));
  EXPECT_NE(noise, second.noise(7, Pass::train));
  EXPECT_NE(noise, none);
  EXPECT_EQ(first.noise(7, Pass::evaluate), none);
}

TEST(Moe, TheRouterChoosesTheLargestAndOfEqualOnesTheLowerIndex) {
  Lab lab;
  const int64_t N = 3, E = 5, K = 3;
  const Tensor logits =
      lab.of<double>({1, 1, 1, 1, 1, 0, 2, -1, 2, 2, 3, -INFINITY, 5, 4, -INFINITY}).as(DType::f64, {N, E});
  const MoeRoute m{lab.empty(DType::i32, {N, K}), lab.empty(DType::f64, {N, K}), lab.empty(DType::f64, {N, E}),
                   lab.empty(DType::f64, {N})};
  moe_route(lab.stream(), m, logits, logits);
  EXPECT_EQ(values(m.expert), (std::vector<double>{0, 1, 2, 1, 3, 4, 2, 3, 0}));
  for (int n = 0; n < 2; ++n)
    for (int k = 0; k < 3; ++k) EXPECT_DOUBLE_EQ(m.weight.ptr<double>()[n * 3 + k], 1. / 3);
  const double* p = m.probability.ptr<double>();
  EXPECT_DOUBLE_EQ(p[0], 0.2);
  EXPECT_EQ(p[11], 0);
  EXPECT_DOUBLE_EQ(m.weight.ptr<double>()[6], 1 / (1 + std::exp(-1) + std::exp(-2)));
}

TEST(Moe, RowsAreSortedByExpertAndPadded) {
  Lab lab;
  std::vector<int32_t> expert;
  for (const auto& token : uneven()) expert.insert(expert.end(), token.begin(), token.end());
  const int64_t R = expert_rows(17, 6, 2);
  const MoeRows m{lab.empty(DType::i32, {7}), lab.empty(DType::i32, {6}), lab.empty(DType::i32, {17, 2}),
                  lab.empty(DType::i32, {R})};
  moe_sort(lab.stream(), m, lab.of(expert).as(DType::i32, {17, 2}));
  EXPECT_EQ(values(m.count), (std::vector<double>{0, 1, 15, 17, 1, 0}));
  EXPECT_EQ(values(m.offset), (std::vector<double>{0, 0, 32, 64, 96, 128, 128}));
  const int32_t *source = m.source.ptr<int32_t>(), *row = m.row.ptr<int32_t>();
  int64_t used = 0, last = -1;
  for (int64_t r = 0; r < R; ++r) {
    if (r % kExpertRows == 0) last = -1;
    if (source[r] < 0) continue;
    ++used;
    EXPECT_EQ(row[source[r]], r);
    EXPECT_TRUE(r % kExpertRows == 0 || source[r] > last) << r;  // tokens in order
    last = source[r];
  }
  EXPECT_EQ(used, 34);
  EXPECT_EQ(moe_offsets(lab.stream(), nullptr, m.offset, 34), (std::vector<int64_t>{0, 0, 32, 64, 96, 128, 128}));
}

TEST(Moe, BalancingLossOfTheFourTokenExample) {
  Lab lab;
  const Tensor logits = lab.of<double>({2, 1, 0, -1, 0, 3, 1, 0, 1, 1, 2, 0, 0, 0, 0, 4}).as(DType::f64, {4, 4});
  const MoeRoute m{lab.empty(DType::i32, {4, 2}), lab.empty(DType::f64, {4, 2}), lab.empty(DType::f64, {4, 4}),
                   lab.empty(DType::f64, {4})};
  const MoeRows rows{lab.empty(DType::i32, {5}), lab.empty(DType::i32, {4}), lab.empty(DType::i32, {4, 2}),
                     lab.empty(DType::i32, {expert_rows(4, 4, 2)})};
  const Tensor sums = lab.zeros(DType::f64, {1, 3, 4}), losses = lab.zeros(DType::f64, {2}),
               load = lab.zeros(DType::f64, {1, 4});
  moe_route(lab.stream(), m, logits, logits);
  moe_sort(lab.stream(), rows, m.expert);
  moe_add_sums(lab.stream(), sums, rows.count, m);
  moe_losses(lab.stream(), {.losses = losses,
                            .total = lab.empty(DType::f64, {3, 4}),
                            .load = load,
                            .sums = sums,
                            .balance = 4. / (4 * 4),
                            .z = 1. / 4});
  EXPECT_NEAR(losses.ptr<double>()[0], 1.951396, 5e-7);
  EXPECT_EQ(values(load), (std::vector<double>{3, 2, 2, 1}));
  double squares = 0;  // logsumexp of each row, squared
  for (int n = 0; n < 4; ++n) {
    double sum = 0;
    for (int e = 0; e < 4; ++e) sum += std::exp(logits.ptr<double>()[4 * n + e]);
    squares += std::log(sum) * std::log(sum);
  }
  EXPECT_NEAR(losses.ptr<double>()[1], squares / 4, 1e-12);
}

namespace {
RunConfig mixtral(const std::vector<std::string>& changes = {}) {
  return tiny_config(R"({"model_type": "mixtral", "vocab_size": 19, "hidden_size": 16, "intermediate_size": 12,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 5,
    "num_experts_per_tok": 2, "router_aux_loss_coef": 0.3, "router_z_loss_coef": 0.05, "router_jitter_noise": 0.1, "sliding_window": 5})",
                     changes);
}
}  // namespace

TEST(Mixtral, TheWholeModelDifferentiates) {
  for (const auto& [blocks, per_layer] : {std::pair{0, "false"}, {1, "true"}}) {
    WholeModel m(
        mixtral({concat("memory.recompute_blocks=", blocks), concat("model.router_aux_loss_per_layer=", per_layer)}));
    m.freeze_choice();
    m.expect_derivatives(
        [&] {
          const double loss = m.train();
          return loss + 0.3 * m.balance() + 2 * 0.05 * m.z();
        },
        {.samples = 8});
  }
}

// As Fedus et al. have it, for K experts a token: E sum_e f_e P_e of a layer, f_e the choices of e by token, P_e the
// mean probability; or f and P of all layers' tokens together.
TEST(Mixtral, TheBalancingLossIsOfAllLayersTogetherOrTheMeanOfEachOnesOwn) {
  std::vector<double> found;
  for (const bool per_layer : {false, true}) {
    WholeModel m(mixtral({concat("model.router_aux_loss_per_layer=", per_layer ? "true" : "false")}));
    m.freeze_choice();
    constexpr size_t L = 2, E = 5, K = 2;
    const std::vector<double>& logits = m.router_logits();
    const size_t N = logits.size() / (L * E);
    double by_layer = 0, together = 0, f_all[E] = {}, p_all[E] = {};
    for (size_t l = 0; l < L; ++l) {
      double f[E] = {}, p[E] = {};
      for (size_t n = 0; n < N; ++n) {
        const double* x = &logits[(l * N + n) * E];
        double sum = 0;
        for (size_t e = 0; e < E; ++e) sum += std::exp(x[e]);
        for (size_t e = 0; e < E; ++e) {
          p[e] += std::exp(x[e]) / sum / double(N);
          size_t better = 0;
          for (size_t other = 0; other < E; ++other) better += x[other] > x[e] || (x[other] == x[e] && other < e);
          f[e] += better < K ? 1. / double(N) : 0;
        }
      }
      for (size_t e = 0; e < E; ++e) {
        by_layer += double(E) * f[e] * p[e] / double(L);
        f_all[e] += f[e] / double(L), p_all[e] += p[e] / double(L);
      }
    }
    for (size_t e = 0; e < E; ++e) together += double(E) * f_all[e] * p_all[e];
    EXPECT_NEAR(m.balance(), per_layer ? by_layer : together, 1e-12);
    found.push_back(m.balance());
  }
  EXPECT_GT(std::abs(found[0] - found[1]), 1e-6);
}

TEST(Mixtral, RecomputingBlocksChangesNoBit) {
  WholeModel kept(mixtral()), again(mixtral({"memory.recompute_blocks=2"}));
  EXPECT_EQ(kept.train(), again.train());
  EXPECT_EQ(kept.balance(), again.balance());
  EXPECT_EQ(kept.gradients(), again.gradients());
}

TEST(Mixtral, TheCoefficientChangesTheGradientAndNotTheLoss) {
  WholeModel with(mixtral()), without(mixtral({"model.router_aux_loss_coef=0"})),
      without_z(mixtral({"model.router_z_loss_coef=0"}));
  EXPECT_EQ(with.train(), without.train());
  EXPECT_EQ(with.balance(), without.balance());
  EXPECT_NE(with.gradients(), without.gradients());
  EXPECT_EQ(with.train(), without_z.train());
  EXPECT_EQ(with.z(), without_z.z());
  EXPECT_NE(with.gradients(), without_z.gradients());
}

}  // namespace octet::BACKEND
