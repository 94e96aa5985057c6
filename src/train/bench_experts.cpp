// octet bench --ops: the products of a layer's experts with tokens dealt out at random, as one grouped product and as a
// loop of tuned ones whose row counts the host knows.
#include "ops/grouped.h"
#include "ops/product_shape.h"
#include "ops/tune.h"
#include "train/op_bench.h"

namespace octet::BACKEND {
namespace {

struct Types {
  DType gradient, activation, plain, sum;  // of dy, of x and w, of what is written, of dw
};

class ExpertBench {
 public:
  ExpertBench(OpBench& b, const RunConfig& c)
      : b_(b), assignments_(c.training.micro_batch_size * c.training.seq_len * c.model.experts_per_token) {
    std::vector<int64_t> tokens(static_cast<size_t>(c.model.num_experts));
    for (int64_t i = 0; i < assignments_; ++i) ++tokens[random_bits(2, 1, uint64_t(i)) % tokens.size()];
    for (const int64_t n : tokens) first_.push_back(int32_t(first_.back() + padded_rows(n)));
    R_ = expert_rows(assignments_, c.model.num_experts, 1);
  }

  void forward(const std::string& name, int64_t I, int64_t O, Types t) {
    rows_product("forward, " + name,
                 {.a = t.activation, .b = t.activation, .d = t.plain, .transposed = false, .fast = true}, O, I);
  }
  void input_gradient(const std::string& name, int64_t I, int64_t O, Types t) {
    rows_product("input gradient, " + name,
                 {.a = t.gradient, .b = t.activation, .d = t.plain, .transposed = !is_fp8(t.activation), .fast = false},
                 I, O);
  }
  void weight_gradient(const std::string& name, int64_t I, int64_t O, Types t) {
    const bool transposed = !is_fp8(t.activation);
    for (const bool grouped : {true, false}) {
      const Factor a = factor(t.gradient, O, R_, transposed), x = factor(t.activation, I, R_, transposed);
      std::vector<Tensor> d;
      for (size_t e = 0; e + 1 < first_.size(); ++e) d.push_back(b_.zeros(t.sum, {O, I}));
      const GroupedGradient g{.d = d, .a = a, .b = x, .rows = rows()};
      std::vector<GemmArgs> loop;
      for_each_expert([&](size_t e, int64_t first, int64_t count) {
        const auto part = [&](Factor f) {  // FP8: as many rows, stored contiguously
          f.t = transposed ? f.t.row_range(first, count) : f.t.part(first * f.t.rows(), {f.t.rows(), count});
          return f;
        };
        loop.push_back({.d = d[e], .a = part(a), .b = part(x), .accumulate = true});
      });
      time("weight gradient, " + name, t.activation, grouped, loop, [&] { grouped_gradient(b_.stream, g); });
    }
  }

 private:
  struct Form {
    DType a, b, d;
    bool transposed, fast;
  };
  void rows_product(const std::string& name, Form f, int64_t N, int64_t K) {
    for (const bool grouped : {true, false}) {
      const Factor a = factor(f.a, R_, K, false);
      std::vector<Factor> w;
      for (size_t e = 0; e + 1 < first_.size(); ++e) w.push_back(factor(f.b, N, K, f.transposed));
      const GroupedGemm g{.d = b_.zeros(f.d, {R_, N}), .a = a, .b = w, .rows = rows(), .fast = f.fast};
      std::vector<GemmArgs> loop;
      for_each_expert([&](size_t e, int64_t first, int64_t count) {
        Factor part = a;
        part.t = a.t.row_range(first, count);
        loop.push_back({.d = g.d.row_range(first, count), .a = part, .b = w[e], .fast = f.fast});
      });
      time(name, f.b, grouped, loop, [&] { grouped_gemm(b_.stream, g); });
    }
  }
  template <class F>
  void time(const std::string& name, DType t, bool grouped, const std::vector<GemmArgs>& loop, F&& op) {
    const std::string what = concat("experts ", name, " ", name_of(t));
    if (grouped) return b_.time(what + ", grouped", op);
    std::vector<ProductShape> shapes;
    for (const GemmArgs& g : loop) shapes.push_back(shape_of(g));
    tune_products(b_.stream, shapes);
    b_.time(what + ", one by one", [&] {
      for (const GemmArgs& g : loop) gemm(b_.stream, g);
    });
  }
  template <class F>
  void for_each_expert(F&& f) const {
    for (size_t e = 0; e + 1 < first_.size(); ++e)
      if (first_[e + 1] > first_[e]) f(e, int64_t(first_[e]), int64_t(first_[e + 1] - first_[e]));
  }
  Factor factor(DType t, int64_t rows, int64_t contracted, bool transposed) {
    const Operand scale = b_.operand({.q = true}, DType::bf16, DType::e4m3, {1, 16});
    return {b_.random(t, transposed ? Shape{contracted, rows} : Shape{rows, contracted}), transposed,
            is_fp8(t) ? scale.slot.scale : nullptr};
  }
  ExpertRows rows() { return {.offset = b_.indices(first_), .assignments = assignments_}; }

  OpBench& b_;
  int64_t assignments_, R_ = 0;
  std::vector<int32_t> first_{0};
};

}  // namespace

void bench_experts(OpBench& b, const RunConfig& c) {
  ExpertBench bench(b, c);
  const int64_t C = c.model.hidden_size, F = c.model.intermediate_size;
  const DType plain = c.precision.param_dtype, sum = c.precision.grad_dtype;
  std::vector<Types> types{{plain, plain, plain, sum}};
  if (c.fp8.enabled)
    types.push_back({*c.fp8.format == Fp8Format::hybrid ? DType::e5m2 : DType::e4m3, DType::e4m3, plain, sum});
  for (const Types& t : types)
    for (const auto& [name, I, O] : {std::tuple{"gate and up", C, 2 * F}, std::tuple{"down", F, C}}) {
      bench.forward(name, I, O, t);
      bench.input_gradient(name, I, O, t);
      bench.weight_gradient(name, I, O, t);
    }
}

}  // namespace octet::BACKEND
