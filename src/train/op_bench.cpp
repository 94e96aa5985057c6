#include "train/op_bench.h"

#include <algorithm>
#include <numeric>

#include "ops/tune.h"
#include "train/entries.h"

namespace octet::BACKEND {

Tensor OpBench::alloc(DType t, Shape shape) {
  Tensor tensor{nullptr, t, shape};
  tensor.data = device_alloc(device, tensor.bytes());
  held_.emplace_back(device, tensor.data);
  return tensor;
}
Tensor OpBench::zeros(DType t, Shape shape) {
  const Tensor tensor = alloc(t, shape);
  fill_zero(stream, tensor);
  return tensor;
}
Tensor OpBench::random(DType t, Shape shape) {
  if (is_fp8(t)) {
    const Operand x = operand({.q = true}, DType::bf16, t, shape);
    quantize(stream, x, random(DType::bf16, shape));
    return x.q;
  }
  const Tensor tensor = alloc(t, shape);
  init_normal(stream, tensor, 0, 1, ++seed_, 0, 0);
  return tensor;
}
static std::vector<int32_t> random_below(int64_t limit, int64_t n) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = int32_t(random_bits(1, 1, i) % uint64_t(limit));
  return values;
}
Tensor OpBench::random_indices(int64_t n, int64_t limit) { return indices(random_below(limit, n)); }
Tensor OpBench::sorting_order(int64_t n, int64_t limit) {
  const std::vector<int32_t> values = random_below(limit, n);
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t i) { return values[size_t(i)]; });
  return indices(order);
}
Tensor OpBench::indices(const std::vector<int32_t>& values) {
  const Tensor tensor = alloc(DType::i32, {int64_t(values.size())});
  copy_to_device(stream, tensor.data, values.data(), tensor.bytes());
  stream.synchronize();
  return tensor;
}
Operand OpBench::operand(Forms f, DType plain, DType codes, Shape shape) {
  Operand x;
  if (f.plain) x.plain = alloc(plain, shape);
  if (!f.q && !f.q_t) return x;
  if (f.q) x.q = alloc(codes, shape);
  if (f.q_t) x.q_t = alloc(codes, {shape[1], shape[0]});
  const Tensor scalars = alloc(DType::f32, {12});  // scale, amax, scale_inv, 16 bytes apart
  init_normal(stream, scalars, 1, 0, 0, 0, 0);
  float* first = scalars.ptr<float>();
  x.scale_inv = first + 8;
  x.slot = {first, reinterpret_cast<uint32_t*>(first + 4), codes};
  return x;
}

void bench_products(OpBench& b, const std::vector<ProductShape>& products) {
  for (const ProductShape& p : products) {
    const auto factor = [&](DType t, int64_t rows, bool transposed) {
      const Operand scale = b.operand({.q = true}, DType::bf16, DType::e4m3, {1, 16});
      return Factor{b.random(t, transposed ? Shape{p.K, rows} : Shape{rows, p.K}), transposed,
                    is_fp8(t) ? scale.slot.scale : nullptr};
    };
    const Tensor d = b.zeros(p.d, {p.M, p.N});
    const DType plain = p.d == DType::f32 && is_fp8(p.a) ? DType::bf16 : p.d;
    const GemmArgs args{.d = d,
                        .a = factor(p.a, p.M, p.a_transposed),
                        .b = factor(p.b, p.N, p.b_transposed),
                        .residual = p.residual ? b.random(p.d, {p.M, p.N}) : Tensor{},
                        .bias = p.bias ? b.random(plain, {p.N}) : Tensor{},
                        .accumulate = p.accumulate,
                        .fast = p.fast};
    const std::string name =
        concat("product ", p.M, " x ", p.N, " x ", p.K, " ", name_of(p.a), p.a_transposed ? "^T" : "", " ",
               name_of(p.b), p.b_transposed ? "^T" : "", " -> ", name_of(p.d), p.accumulate ? " +=" : "",
               p.residual ? " + residual" : "", p.bias ? " + bias" : "");
    b.time(name, [&] { gemm(b.stream, args); });
  }
}

std::vector<OpTime> bench_ops(const RunConfig& c, const Target& target, const PlanResult& plan, OpKinds kinds) {
  OpBench b({.deterministic = c.training.deterministic, .plan_cache = c.memory.plan_cache, .target = target});
  if (kinds.layers) bench_layers(b, c);
  if (!kinds.products) return b.results;
  tune_products(b.stream, plan.products);
  bench_products(b, plan.products);
  if (c.model.arch == Arch::mixtral) bench_experts(b, c);
  return b.results;
}

}  // namespace octet::BACKEND
