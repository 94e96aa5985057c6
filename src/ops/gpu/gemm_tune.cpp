// Autotuning: times cuBLASLt's proposals for each product, on random data of the real size.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "ops/gpu/few_rows.h"
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

struct Candidate {
  cublasLtMatmulAlgo_t algo;
  double seconds;  // of one run
};

class Trial {  // a product on buffers of its real size
 public:
  Trial(Stream& s, const ProductKey& key) : stream_(s), shape_(key.shape), product_(key) { product_.bind(pointers_); }

  // All proposals that really run, the fastest first.
  std::vector<Candidate> candidates() {
    constexpr int kProposals = 16, kWarm = 2, kTimed = 5;
    std::vector<Candidate> all;
    for (const cublasLtMatmulAlgo_t& algo : product_.proposals(stream_.device(), kProposals))
      if (const auto seconds = time_of(algo, kWarm, kTimed)) all.push_back({algo, *seconds});
    std::ranges::stable_sort(all, {}, &Candidate::seconds);
    return all;
  }
  // candidates() ran on a cool card at high clocks; in a training step the card is at its power limit. So the
  // candidates close to the fastest run again, alternating and long enough to heat the card.
  Candidate best_of(std::vector<Candidate> finalists) {
    constexpr double kClose = 1.15, kRoundSeconds = 8e-3;
    constexpr size_t kMost = 5, kRounds = 3;
    std::erase_if(finalists, [&](const Candidate& c) { return c.seconds > kClose * finalists.front().seconds; });
    finalists.resize(std::min(finalists.size(), kMost), finalists.front());
    if (finalists.size() == 1) return finalists.front();
    const int runs = std::max(1, int(kRoundSeconds / finalists.front().seconds));
    for (Candidate& c : finalists) c.seconds = 0;
    for (size_t round = 0; round < kRounds; ++round)
      for (Candidate& c : finalists) c.seconds += time_of(c.algo, 1, runs).value_or(1) / kRounds;
    return std::ranges::min(finalists, {}, &Candidate::seconds);
  }

 private:
  std::optional<double> time_of(const cublasLtMatmulAlgo_t& algo, int warm, int timed) {
    for (int i = 0; i < warm; ++i)
      if (product_.run(stream_, pointers_, algo) != CUBLAS_STATUS_SUCCESS) return {};
    start_.record(stream_);
    for (int i = 0; i < timed; ++i) CUBLAS_CHECK(product_.run(stream_, pointers_, algo));
    stop_.record(stream_);
    stop_.synchronize();
    return stop_.seconds_since(start_) / timed;
  }

  Stream& stream_;
  ProductShape shape_;
  Buffer a_{stream_, shape_.a, shape_.M*shape_.K, 1}, b_{stream_, shape_.b, shape_.N*shape_.K, 2},
      d_{stream_, shape_.d, shape_.M*shape_.N, 3}, c_{stream_, shape_.d, shape_.residual ? shape_.M*shape_.N : 0, 4},
      bias_{stream_, epilogue_bias(shape_.a, shape_.d), shape_.N, 5}, scale_{stream_, DType::f32, 4, 6};
  ProductPointers pointers_{.a = a_.data(),
                            .b = b_.data(),
                            .c = shape_.residual ? c_.data() : d_.data(),
                            .d = d_.data(),
                            .a_scale = static_cast<const float*>(scale_.data()),
                            .b_scale = static_cast<const float*>(scale_.data()),
                            .bias = bias_.data()};
  Product product_;
  Event start_{stream_.device()}, stop_{stream_.device()};
};

void tune(Stream& s, const ProductKey& key) {
  Trial trial(s, key);
  const std::vector<Candidate> candidates = trial.candidates();
  if (candidates.empty()) return;  // gemm() will say what is wrong, if it is called at all
  const Candidate best = trial.best_of(candidates);
  const auto tflops = [&](const Candidate& c) { return key.shape.flops() / c.seconds * 1e-12; };
  ProductPlans::of(s.device()).choose(key, {best.algo, tflops(best)});
  spdlog::debug("product {}: {:.0f} TFLOP/s of {} plans, the best of which ran at {:.0f} on a cool card", text_of(key),
                tflops(best), candidates.size(), tflops(candidates.front()));
}

}  // namespace

std::vector<ProductShape> take_products(Device&) { return {}; }

void tune_products(Stream& s, std::span<const ProductShape> shapes) {
  ProductPlans& plans = ProductPlans::of(s.device());
  s.device().impl().workspace(s);  // allocated now even if nothing is tuned: memory is fixed before the first step
  int tuned = 0;
  for (const ProductShape& shape : shapes) {
    const ProductKey key{shape};
    if (shape.flops() == 0 || plans.has(key) || few_rows(shape)) continue;
    tune(s, key);
    ++tuned;
  }
  if (!tuned) return;
  s.synchronize();
  plans.save();
  spdlog::info("chose the plans of {} matrix products by timing", tuned);
}

}  // namespace octet::BACKEND
