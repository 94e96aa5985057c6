#pragma once
// OpBench: one op at a time on random data, timed by events around many calls in a row. On the plan engine a call is
// counted instead.
#include <utility>

#include "base/rng.h"
#include "host/engine.h"
#include "ops/ops.h"

namespace octet::BACKEND {

class OpBench {
 public:
  explicit OpBench(const Device::Options& options) : device(options), stream(device), begin_(device), end_(device) {}

  // Tensors that live until the next time().
  Tensor zeros(DType, Shape);
  Tensor random(DType, Shape);  // normal numbers, or codes of such
  Tensor indices(const std::vector<int32_t>&);
  Tensor random_indices(int64_t n, int64_t limit);  // below `limit`, the same at each call
  Tensor sorting_order(int64_t n, int64_t limit);   // the permutation that sorts them
  // Every form of f, with a scale of 1 and a measured amax.
  Operand operand(Forms f, DType plain, DType codes, Shape);

  template <class F>
  void time(const std::string& name, F&& op) {
    device.take_work();
    op();
    OpTime result{.name = name};
    for (const Work& w : device.take_work()) result.flops += w.flops, result.bytes += w.bytes;
    if (result.bytes == 0) {  // an engine that computes
      for (int i = 0; i < kWarm; ++i) op();
      begin_.record(stream);
      for (int i = 0; i < kCalls; ++i) op();
      end_.record(stream);
      end_.synchronize();
      result.seconds = end_.seconds_since(begin_) / kCalls;
    }
    results.push_back(result);
    held_.clear();
  }

  Device device;
  Stream stream;
  std::vector<OpTime> results;

 private:
  static constexpr int kWarm = 2, kCalls = 20;
  struct Held {
    Device* device;
    void* p;
    Held(Device& d, void* memory) : device(&d), p(memory) {}
    Held(Held&& o) noexcept : device(o.device), p(std::exchange(o.p, nullptr)) {}
    ~Held() {
      if (p) device_free(*device, p);
    }
  };
  Tensor alloc(DType, Shape);
  std::vector<Held> held_;
  Event begin_, end_;
  uint64_t seed_ = 1;
};

struct BenchSizes {
  int64_t N, C, F, V;
  Heads heads;
  DType plain, wide, gradient, gradient_codes;  // of activations, statistics, parameters' gradients, FP8 gradients
};
inline constexpr Forms kBothWays{.q = true, .q_t = true}, kAllForms{.plain = true, .q = true, .q_t = true};
// f(forms, suffix) for the plain form, and for `fp8` where the config asks for FP8: both ways, or with the plain form
// besides, which the sum of a bias gradient reads.
template <class F>
void for_each_form(const RunConfig& c, Forms fp8, F&& f) {
  f(Forms{.plain = true}, std::string());
  if (c.fp8.enabled) f(fp8, std::string(fp8.plain ? ", plain and FP8 both ways" : ", FP8 both ways"));
}
void bench_norm(OpBench&, const RunConfig&, const BenchSizes&);        // RMSNorm or LayerNorm
void bench_activation(OpBench&, const RunConfig&, const BenchSizes&);  // SwiGLU, or GELU and the sums of bias gradients

void bench_layers(OpBench&, const RunConfig&);                             // ops/ops.h, but products
void bench_products(OpBench&, const std::vector<ProductShape>& products);  // each that the config's step runs
void bench_experts(OpBench&, const RunConfig&);                            // ops/grouped.h

}  // namespace octet::BACKEND
