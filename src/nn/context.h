#pragma once
// What layers are declared with (Builder) and what they run with (Context).
#include <functional>

#include "nn/kv_cache.h"
#include "nn/parameters.h"
#include "precision/recipe.h"

namespace octet::BACKEND {

// How the experts of a layer are spread: each rank of `group` holds as many of them, in order.
struct ExpertRanks {
  Comm* group = nullptr;  // null: every rank holds all
  Holders holders{};      // of the experts of this rank
  double buffer = 2;      // room for rows from the others, as a multiple of the mean
};

struct Builder {
  ParameterStore& params;
  DelayedScaling& scaling;  // of activations and gradients
  const Recipe& recipe;
  ExpertRanks experts{};
};

// train: the forward whose backward follows. recompute: the same forward again, in backward. evaluate: no backward.
enum class Pass : uint8_t { train, recompute, evaluate };

// What the routers of a model with experts share: their losses count all layers together (ops/moe.h).
struct Routers {
  Tensor sums{};                      // (L,3,E) f64: of this micro-batch; none: routers are not judged
  Tensor total{};                     // (3,E) f64: of all layers and ranks, from forward to backward
  bool by_layer = false;              // each layer is balanced by its own sums
  double balance = 0, z = 0;          // factors of the losses' gradients
  const float* loss_scale = nullptr;  // a factor on both, or none
  Tensor losses{};                    // (2) f64 +=: balancing loss and z-loss, for whoever reports them
  double share = 1;                   // of this micro-batch in the step
  uint64_t seed = 0;                  // of the jitter: another for each micro-batch and rank
  // For whoever compares with another program: each layer's logits (N,E) as they are made, and (L,N,E) whose largest
  // decide the experts instead.
  std::function<void(int64_t layer, Tensor)> observe{};
  Tensor choice{};
};

struct Context {
  Stream& stream;
  ParameterStore& params;
  DelayedScaling& scaling;
  Arena& saved;    // from the forward to the backward pass of a block
  Arena& scratch;  // to the end of the block
  Pass pass = Pass::train;
  int64_t B = 1, T = 1;  // of the micro-batch under way
  ParameterStore::Batch batch = ParameterStore::Batch::last;
  Routers routers{};
  const KvCache* cache = nullptr;  // of an evaluation that reads a prompt or goes on with it
  bool rounded_angles = false;     // precision.buffer_dtype: ops.h, Rope

  DType plain() const { return params.options().plain; }
  const Target& target() const { return stream.target(); }
  bool decodes() const { return cache && cache->decodes(); }  // one token a sequence, again and again
  bool evaluates_plain() const { return pass == Pass::evaluate && !params.options().evaluate_fp8; }

  // Where each form of an operand is to live.
  struct Placement {
    Arena *plain, *q, *q_t;
  };
  // An operand to be filled by its producer; slot < 0: never quantised. scales: of as many slots, from `slot` on.
  Operand operand(Placement, Shape, Forms, int slot, int64_t scales = 1) const;

  // Runs kernel(y). Where a slot has no history yet (or under the recipe "current") twice, the first time only to
  // measure: the scale it casts with is then its own and leaves no trace. A step whose health is asked for runs it once
  // more: what is zero even with the largest scale was zero before the cast.
  template <class F>
  void produce(Operand y, F&& kernel) const {
    const bool quantised = y.q || y.q_t;
    const Tensor counts = quantised ? scaling.counts(y.slot) : Tensor{}, codes = y.q ? y.q : y.q_t;
    if (quantised && scaling.measures_first(y.slot)) {
      const Tensor own = scratch.alloc(DType::f32, {8});  // scale, then amax 16 bytes on
      float* scale = own.ptr<float>();
      uint32_t* amax = reinterpret_cast<uint32_t*>(scale + 4);
      fill_zero(stream, own);
      kernel(Operand{.slot = {scale, amax, y.slot.format}});
      current_scale(stream, scale, amax, largest_of(y.slot.format), scaling.options().power_of_2);
      y.slot.scale = scale;
    }
    if (counts) {
      kernel(
          Operand{.q = y.q, .q_t = y.q ? Tensor{} : y.q_t, .slot = {scaling.largest_scale(), nullptr, y.slot.format}});
      count_codes(stream, counts.part(4, {4}), codes);
    }
    kernel(y);
    if (counts) count_codes(stream, counts.part(0, {4}), codes);
  }
  float largest_of(DType format) const;  // with the margin taken off
};

// The second kernel, where a producer can only write the plain form: fills the others from it.
void complete(const Context&, const Operand& y, Tensor plain);

}  // namespace octet::BACKEND
