// Times cuBLASLt's proposals for each product on random data of the real size (zeros draw less power and run faster).
#include <spdlog/spdlog.h>

#include "ops/gpu/gemm_plans.h"
#include "ops/tune.h"

namespace octet::BACKEND {
namespace {

class Buffer {  // device memory with random contents
 public:
  Buffer(Stream& s, DType t, int64_t n, uint64_t stream)
      : device_(s.device()), p_(device_alloc(device_, size_t(n) * size_of(t))) {
    fill_random(s, {p_, t, {n}}, stream);
  }
  ~Buffer() { device_free(device_, p_); }
  Buffer(const Buffer&) = delete;
  void* data() const { return p_; }

 private:
  Device& device_;
  void* p_;
};

// Seconds of one run, or nothing if the library refuses after all.
std::optional<double> time_of(Stream& s, const Product& product, const ProductPointers& p,
                              const cublasLtMatmulAlgo_t& algo) {
  constexpr int kWarm = 2, kTimed = 5;
  for (int i = 0; i < kWarm; ++i)
    if (product.run(s, p, algo) != CUBLAS_STATUS_SUCCESS) return {};
  Event start(s.device()), stop(s.device());
  start.record(s);
  for (int i = 0; i < kTimed; ++i) CUBLAS_CHECK(product.run(s, p, algo));
  stop.record(s);
  stop.synchronize();
  return stop.seconds_since(start) / kTimed;
}

void tune(Stream& s, const ProductKey& key) {
  const ProductShape& k = key.shape;
  const Buffer a(s, k.a, k.M * k.K, 1), b(s, k.b, k.N * k.K, 2), d(s, k.d, k.M * k.N, 3);
  const Buffer c(s, k.d, k.residual ? k.M * k.N : 0, 4), bias(s, epilogue_bias(k), k.N, 5), scale(s, DType::f32, 4, 6);
  Product product(key);
  const ProductPointers p{.a = a.data(),
                          .b = b.data(),
                          .c = k.residual ? c.data() : d.data(),
                          .d = d.data(),
                          .a_scale = static_cast<const float*>(scale.data()),
                          .b_scale = static_cast<const float*>(scale.data()),
                          .bias = bias.data()};
  product.bind(p);
  constexpr int kProposals = 16;
  std::optional<double> first, best;
  cublasLtMatmulAlgo_t chosen{};
  for (const cublasLtMatmulAlgo_t& algo : product.proposals(s.device(), kProposals)) {
    const std::optional<double> seconds = time_of(s, product, p, algo);
    if (!seconds) continue;
    if (!first) first = seconds;
    if (best && *seconds >= *best) continue;
    best = seconds;
    chosen = algo;
  }
  if (!best) return;  // gemm() will say what is wrong, if it is called at all
  const auto tflops = [&](double seconds) { return k.flops() / seconds * 1e-12; };
  ProductPlans::of(s.device()).choose(key, {chosen, tflops(*best)});
  spdlog::debug("product {}: {:.0f} TFLOP/s; cuBLASLt's first proposal {:.0f}", text_of(key), tflops(*best),
                tflops(*first));
}

}  // namespace

std::vector<ProductShape> take_products(Device&) { return {}; }

void tune_products(Stream& s, std::span<const ProductShape> shapes) {
  ProductPlans& plans = ProductPlans::of(s.device());
  s.device().impl().workspace(
      s);  // now, though every plan may be known: it is part of the memory before the first step
  int tuned = 0;
  for (const ProductShape& shape : shapes) {
    const ProductKey key{shape};
    if (shape.flops() == 0 || plans.has(key)) continue;
    tune(s, key);
    ++tuned;
  }
  if (!tuned) return;
  s.synchronize();
  plans.save();
  spdlog::info("chose the plans of {} matrix products by timing", tuned);
}

}  // namespace octet::BACKEND
