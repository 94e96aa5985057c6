#pragma once
// Builder: what layers are constructed with. Context: what their passes run with.
#include <functional>

#include "nn/kv_cache.h"
#include "nn/parameters.h"
#include "precision/recipe.h"

namespace octet::BACKEND {

// Expert parallelism: the ranks of `group` hold equal, consecutive shares of each layer's experts.
struct ExpertRanks {
  Comm* group = nullptr;           // null: every rank holds all experts
  ProcessGroups process_groups{};  // of this rank's experts
  double buffer = 2;               // rows of the receive buffer, as a multiple of the mean number that a rank receives
};

struct Builder {
  ParameterStore& params;
  DelayedScaling& scaling;  // of activations and gradients
  const Recipe& recipe;
  ExpertRanks experts{};
};

// train: the forward pass that a backward pass follows. recompute: the same again, within backward. evaluate: no
// backward.
enum class Pass : uint8_t { train, recompute, evaluate };

// State of all routers of a model with experts, whose auxiliary losses are over all layers (ops/moe.h).
struct Routers {
  // (L,3,E) f64: statistics of this micro-batch, after the forward pass those of all ranks, unless each is balanced by
  // itself; none: no auxiliary losses
  Tensor sums{};
  Tensor total{};                     // (3,E) f64: their sums over all layers, from forward to backward
  bool by_layer = false;              // each layer is balanced by its own statistics
  double balance = 0, z = 0;          // factors of the gradients of the two losses
  const float* loss_scale = nullptr;  // multiplies both, unless null
  Tensor losses{};                    // (2) f64 +=: balancing loss and z-loss of `sums`, to be reported
  double share = 1;                   // this micro-batch's share of the step
  uint64_t seed = 0;                  // of the jitter: different for each micro-batch and rank
  // For comparisons with another program: is given each layer's logits (N,E); and (L,N,E) logits that replace them in
  // the choice of experts.
  std::function<void(int64_t layer, Tensor)> observe{};
  Tensor choice{};
};

struct Context {
  Stream& stream;
  ParameterStore& params;
  DelayedScaling& scaling;
  Arena& saved;    // lives from the forward to the backward pass of a block
  Arena& scratch;  // lives to the end of the block's pass
  Pass pass = Pass::train;
  int64_t B = 1, T = 1;  // of this micro-batch
  ParameterStore::Batch batch = ParameterStore::Batch::last;
  Routers routers{};
  Tensor documents{};              // of this micro-batch: ops.h, Attention
  const KvCache* cache = nullptr;  // in generation
  bool rounded_angles = false;     // precision.buffer_dtype is coarser than fp32, or the table scaled: ops.h, Rope

  DType plain() const { return params.options().plain; }
  const Target& target() const { return stream.target(); }
  bool decodes() const { return cache && cache->decodes(); }  // generation's steps of one token a sequence
  bool evaluates_plain() const { return pass == Pass::evaluate && !params.options().evaluate_fp8; }

  struct Placement {  // the arena of each form of an operand
    Arena *plain, *q, *q_t;
  };
  // Memory for an operand that its producer fills; slot < 0: never quantised. scales: number of slots, from `slot` on.
  Operand operand(Placement, Shape, Forms, int slot, int64_t scales = 1) const;

  // Runs kernel(y), the producer of y. If y's slot has no history yet (or under the recipe "current"), runs it twice:
  // the first time only measures amax, from which comes a scale for this cast alone. In a step that examines FP8
  // health, runs it once more, with the largest possible scale: codes that are zero even then were zero before the
  // cast. What it takes of scratch it gives back: how many casts there are, expert by expert, the routing decides.
  template <class F>
  void produce(Operand y, F&& kernel) const {
    const Arena::Scope scope(scratch);
    const bool quantised = y.q || y.q_t;
    const Tensor codes = y.q ? y.q : y.q_t, counts = quantised ? scaling.counts(y.slot, codes.numel()) : Tensor{};
    if (quantised && scaling.measures_first(y.slot)) {
      const Tensor own = scratch.alloc(DType::f32, {8});  // the scale, and 16 bytes further the amax
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
      count_codes(stream, counts.part(6, {6}), codes);
    }
    kernel(y);
    if (counts) count_codes(stream, counts.part(0, {6}), codes);
  }
  float largest_of(DType format) const;  // the format's largest value times 2^-margin
};

// Where a producer can only write the plain form: fills the other forms of y from it, in a second kernel.
void complete(const Context&, const Operand& y, Tensor plain);

}  // namespace octet::BACKEND
