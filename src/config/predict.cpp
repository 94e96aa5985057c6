#include "config/predict.h"

#include <algorithm>

namespace octet {
namespace {

struct Rate {
  double flops = 0, bytes = 0;  // FLOP/s, byte/s; 0: not known
  enum Of : uint8_t { memory, link } of = memory;
};

// Of the H200 SXM within whole steps, at its power limit, fitted to scripts/bench/RESULTS.md. Products and attention:
// their rate on large shapes, and what small ones cost beyond it, in bytes. Collectives: what they added to the steps
// of two cards on NVLink, where they run beside products and slow these down. Scaling and copies are rough: they hardly
// count.
Rate rate_of(Kernel kernel, bool small_heads) {
  switch (kernel) {
    case Kernel::gemm_fp8:
      return {1385e12, 6.0e12};
    case Kernel::gemm_bf16:
      return {719e12, 8.8e12};
    case Kernel::attention_forward:
      return {small_heads ? 439e12 : 630e12, 3.5e12};
    case Kernel::attention_backward:
      return {small_heads ? 286e12 : 333e12, 3.5e12};
    case Kernel::norm:
      return {0, 3.75e12};
    case Kernel::rope:
      return {0, 3.4e12};
    case Kernel::activation:
      return {0, 4.0e12};
    case Kernel::quantize:
      return {0, 3.35e12};
    case Kernel::embedding:
      return {0, 3.4e12};
    case Kernel::loss:
      return {0, 3.3e12};
    case Kernel::optimizer:
      return {0, 3.75e12};
    case Kernel::elementwise:
      return {0, 3.7e12};
    case Kernel::scaling:
      return {0, 1e12};
    case Kernel::copy:
      return {0, 3e12};
    case Kernel::all_gather:
    case Kernel::reduce_scatter:
    case Kernel::all_reduce:
      return {0, 380e9, Rate::link};
    case Kernel::all_to_all:  // while nothing else runs
      return {0, 100e9, Rate::link};
    case Kernel::gemm_f32:
    case Kernel::wait:
    case Kernel::count:
      break;
  }
  return {};
}

// Cards of a machine that pass on what a collective sends to the next one, each by its own link; 0: it stays within
// machines. Sharding groups are consecutive ranks, or of these the ones that hold the same experts; the ranks of an
// all-reduce (among replicas) are the corresponding ones of these groups. Experts are spread within a machine.
int64_t senders(Kernel kernel, const PredictedCard& c) {
  if (c.ranks <= c.local || kernel == Kernel::all_to_all) return 0;
  if (kernel == Kernel::all_reduce) return c.local / std::min(std::max(c.degree, c.spread), c.local);
  if (c.local % c.degree == 0) return 0;
  return c.degree < c.local ? 1 : c.local / c.spread;
}

}  // namespace

Prediction predict(const WorkLog& work, int64_t head_size, const PredictedCard& card) {
  constexpr double kLaunch = 2e-6;
  Prediction p;
  if (card.memory <= 0) return p;
  for (size_t k = 0; k < work.size(); ++k) {
    const Work& w = work[k];
    if (w.calls == 0) continue;
    Rate rate = rate_of(Kernel(k), head_size <= 64);
    if (rate.bytes == 0 || (w.flops > 0 && rate.flops == 0)) return {};
    if (rate.of == Rate::memory) {
      rate.bytes *= card.memory;
    } else if (const int64_t cards = senders(Kernel(k), card)) {
      rate.bytes = std::min(rate.bytes, double(cards) * kNetwork);
      p.network |= w.bytes > 0;
    }
    p.seconds[k] = (w.flops > 0 ? w.flops / rate.flops : 0) + w.bytes / rate.bytes + double(w.calls) * kLaunch;
    p.step += p.seconds[k];
  }
  return p;
}

}  // namespace octet
