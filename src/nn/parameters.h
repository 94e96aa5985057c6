#pragma once
// ParameterStore: every trainable tensor, declared once, by the layer that owns it.
//
// Parameters are grouped in units (one transformer block is one unit). A unit has one segment per gather type: the FP8
// matrices, and the rest. Each segment is one flat range, padded to a multiple of shards x 128 elements, of which shard
// r owns the r-th slice: gathering weights is one all-gather a segment, reducing gradients one reduce-scatter.
//
//   stage            0            1            2            3        Rajbhandari et al. 2019 (ZeRO), arXiv:1910.02054
//   master, moments  whole        slice        slice        slice
//   gradients        whole        whole        slice        slice    (2, 3: whole of the units under way, in turn)
//   weights          whole        whole        whole        slice    (3: likewise)
//
// A layer's experts are a unit of their own, with groups of their own: they may be spread over ranks, and are then
// dealt out among the ranks that hold the same ones.
//
// "whole" gradients are all-reduced (0) or reduce-scattered in place (1) after the last micro-batch, slices after each.
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "precision/scaling.h"

namespace octet::BACKEND {

struct Init {  // N(mean, std^2); std 0 draws nothing
  double mean = 0, std = 0;
  int64_t rows = 0;  // of a matrix, those below are padding and zero; 0: none is
};
enum class Use : uint8_t { forward, backward, evaluate };
// Of a unit's whole weights and gradients where they are not kept: buffers of its own, or two in turn. beside:
// likewise, two others, as such a unit is in use at the same time as a rotating one.
enum class Residence : uint8_t { own, rotating, beside };
struct Holders {            // of a unit
  Comm* shard = nullptr;    // among which its slices are dealt
  Comm* replica = nullptr;  // those that hold the same slice, or null
  int stride = 1;           // ranks r, r + stride, ... hold the same parameters
};

struct Param {
  int unit = -1;
  Precision segment = Precision::plain;
  int64_t offset = 0;  // in the segment
  Shape shape;         // of all parts together
  Forms forms;         // what its products read in training
  int slot = -1;
};

struct ParameterOptions {
  DType plain = DType::f32, master = DType::f32, moment = DType::f32, grad = DType::f32, reduce = DType::f32;
  int zero_stage = 0;
  int prefetch = 1;  // units that may be gathered ahead, where whole weights are not kept
  // false (evaluation, generation): no gradients and moments, no random start; plain weights are their own masters
  bool trains = true;
  bool evaluate_fp8 = false;        // evaluation reads the FP8 weights instead of plain ones
  bool delayed_weights = false;     // cast with the scale of earlier steps (fp8.weight_scaling)
  bool cast_through_plain = false;  // masters are rounded to the plain type before the cast, as TE sees them
  bool gather_plain = false;        // FP8 weights travel in the plain type and are cast where they arrive
  ScalingOptions weight_scaling{};
};

class Arenas {  // one for each category of the memory plan
 public:
  Arenas(Stream&, const MemoryPlan&);
  Arena& operator[](Memory m) const { return *arenas_[size_t(m)]; }
  MemoryPlan peak() const;

 private:
  std::array<std::unique_ptr<Arena>, kMemoryNames.size()> arenas_;
};

class ParameterStore {
 public:
  // shard: the ranks among which slices are dealt; replica: the ranks that hold the same slice, or null. side: where
  // collectives and what belongs to them run, beside the stream that computes. all: the ranks that hold everything
  // together, if shard does not.
  ParameterStore(Comm& shard, Comm* replica, Stream& side, const ParameterOptions&, Comm* all = nullptr);

  struct Part {
    std::string name;
    Shape shape;
  };
  int begin_unit(std::string name, Residence, const Holders* = nullptr);  // its number; none: those of the store
  int unit() const { return current_; }                                   // that add() adds to
  void resume_unit(int unit) { current_ = unit; }
  // Several parts stand adjacent and are one matrix: one view, one product, one scale. FP8 forms put it in that
  // segment.
  Param add(const std::vector<Part>&, Init, Forms forms = {.plain = true});
  void add_elsewhere(const std::vector<Part>&,
                     Forms);  // the same where other ranks hold it: names and scales are all's
  void materialise(Stream&, const Arenas&, uint64_t seed);  // after the model is built: reserve, deal out, initialise
  void draw(Stream&, uint64_t seed);                        // the random start; publish() what changed
  enum class Masters { changed, stepped };  // by anything; by AdamW, which wrote maxima and plain slices too
  void publish(Stream&, Masters);           // new scales, FP8 slices and whole weights from the masters

  class Lease {  // weights of one unit, valid while the lease lives
   public:
    explicit Lease(int& count) : count_(&count) { ++count; }
    Lease(Lease&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
    ~Lease() {
      if (count_) --*count_;
    }

   private:
    int* count_;
  };
  void prefetch(Stream&, int unit, Use);  // starts gathering; nothing if out of range or already under way
  bool holds(int unit) const {            // its whole weights are there, or on their way
    return weights_[size_t(units_[size_t(unit)].weights)].unit == unit;
  }
  [[nodiscard]] Lease acquire(Stream&, int unit, Use);  // waits for it
  Operand value(const Param&) const;                    // the forms that the lease's Use gives
  Tensor grad(const Param&) const;
  enum class Batch { more_follow, last };
  void reduce(Stream&, int unit, Batch);  // the unit's gradients of this micro-batch are complete
  void wait_for_gradients(Stream&);       // all that reduce() started has happened
  void zero_gradients(Stream&);           // before the first micro-batch of a step
  void sum_squares(Stream&, Tensor total /*(1) f64 +=*/, Tensor partial);  // of all ranks' gradients, each element once

  const ParameterOptions& options() const { return options_; }
  int num_units() const { return int(units_.size()); }
  int64_t count() const;  // parameters, without padding
  int ranks() const { return size_of_group(store_.shard) * size_of_group(store_.replica); }
  void sum_over_ranks(Stream&, Tensor);  // in place
  DelayedScaling& weight_scales() { return scales_; }
  // Where AdamW leaves a weight's maximum; null under delayed scaling, whose casts measure.
  uint32_t* weight_amax(int slot) const { return options_.delayed_weights ? nullptr : scales_.measured(slot).amax; }

  // The local slices. Views of padding are never given.
  struct Local {
    Tensor master, m, v, grad, weights;
    int64_t first;  // index within the parameter or group
    bool counts;    // this rank is the first of those that hold the slice
  };
  template <class F>
  void for_each(F&& f) const {  // f(name, whole shape, Local); each part by itself, other ranks' as slices of nothing
    for (const Unit& u : units_)
      for (const Entry& e : u.entries)
        f(e.name, e.shape, e.here ? local(u, e.segment, e.offset, e.shape.numel()) : nowhere());
  }
  template <class F>
  void for_each_group(F&& f) const {  // f(name of the first part, Param, Local); not other ranks'
    for (const Unit& u : units_)
      for (const Group& g : u.groups)
        f(g.name, g.param, local(u, g.param.segment, g.param.offset, g.param.shape.numel()));
  }
  // f(name, tensor, stride): what ranks r, r + stride, ... hold in common; waits in the stream until it is complete.
  template <class F>
  void for_each_common(Stream&, F&& f);
  template <class F>
  void for_each_gradient(F&& f) const {  // f(slice): all local gradients, padding (zero) included
    for (const Unit& u : units_)
      for (const Segment& g : u.segments)
        if (g.size) f(g.grad);
  }
  template <class F>
  void for_each_gradient_once(F&& f) const {  // likewise, but of ranks that hold the same slice only on the first
    for (const Unit& u : units_)
      for (const Segment& g : u.segments)
        if (g.size && counts(u)) f(g.grad);
  }

 private:
  struct Entry {
    std::string name;
    Shape shape;
    Init init;
    Precision segment;
    int64_t offset;
    bool here = true;  // not on other ranks only
  };
  struct Group {
    std::string name;
    Param param;
  };
  struct Segment {
    int64_t size = 0;
    Tensor master{}, m{}, v{}, grad{}, q{};
  };  // local slices; size: of all shards
  struct Unit {
    std::string name;
    Residence residence;
    Holders holders;
    std::array<Segment, 2> segments{};  // by Precision
    std::vector<Entry> entries{};
    std::vector<Group> groups{};
    Forms forms{};                 // wanted of any of its FP8 parameters
    int weights = -1, grads = -1;  // index of its buffers
  };
  struct Weights {  // whole: plain segment; FP8 segment as W8, transposes, plain
    Tensor plain{}, q{}, q_t{}, q_plain{};
    int unit = -1, leased = 0;
    Use use = Use::forward;
    std::unique_ptr<Event> ready{};  // gathered; null: already waited for
  };
  struct Grads {
    std::array<Tensor, 2> whole{};
    int unit = -1;
    std::unique_ptr<Event> reduced{};  // given back; null: already waited for
  };

  void lay_out(const Arenas&);
  void alloc_slices(const Arenas&);
  void zero(Stream&);
  void measure_masters(Stream&);
  void cast_slices(Stream&);
  void cast(Stream&, const Operand&, Tensor master, Tensor counts);
  void cast_gathered(Stream&, Unit&, Use);
  void start_gather(Stream&, Unit&, Use);
  void open_gradients(Stream&, int unit);  // zeroed whole gradients, where they are not kept
  void gather(Stream&, Unit&, Use);
  Stream& beside(Stream&);  // the side stream, from this point of the other on
  void gather_plain_of_fp8(Stream&, int unit);
  static void all_gather(Stream&, Comm& shard, const std::vector<std::pair<Tensor, Tensor>>& whole_and_mine);
  // f(tensor) for each in the type that gradients travel in, all as one group; what comes back is `kept` of them.
  template <class F, class Kept>
  void travelling(Stream&, Comm&, const std::vector<Tensor>&, F&& collective, Kept&& kept);
  const Weights& leased(int unit) const;
  static int size_of_group(const Comm* c) { return c ? c->size() : 1; }
  static int shards(const Unit& u) { return size_of_group(u.holders.shard); }
  static int replicas(const Unit& u) { return size_of_group(u.holders.replica); }
  static bool travels(const Unit& u) { return shards(u) > 1 || replicas(u) > 1; }
  static bool counts(const Unit& u) { return !u.holders.replica || u.holders.replica->rank() == 0; }
  bool any_travels() const;
  bool keeps_weights(const Unit& u) const { return options_.zero_stage < 3 || shards(u) == 1; }
  bool gathers_plain(const Unit& u) const { return options_.gather_plain && shards(u) > 1; }
  bool shares_masters(const Unit& u) const {
    return !options_.trains && options_.master == options_.plain && keeps_weights(u);
  }
  bool keeps_gradients(const Unit& u) const { return options_.zero_stage < 2 || shards(u) == 1; }
  Local local(const Unit&, Precision, int64_t offset, int64_t count) const;
  Local nowhere() const;
  static Tensor slice(const Unit& u, Tensor whole) {
    const int64_t n = whole.numel() / shards(u);
    return whole.part(u.holders.shard->rank() * n, {n});
  }
  static size_t lane(const Unit& u) { return u.residence == Residence::beside; }  // units in use at once differ in it

  static Forms merge(Forms a, Forms b) { return {a.plain || b.plain, a.q || b.q, a.q_t || b.q_t}; }

  static constexpr size_t kPlain = size_t(Precision::plain), kFp8 = size_t(Precision::fp8);  // of a unit's segments
  static constexpr int64_t kAlign = 128;               // elements: 128 bytes at least, whatever the type
  static constexpr int64_t kStage = int64_t{1} << 22;  // elements of stage_
  Holders store_;                                      // of units without any of their own
  Comm& all_;
  Stream& side_;
  Event point_;
  ParameterOptions options_;
  DelayedScaling scales_;
  Tensor scale_inv_{};  // (slots,4): of the bytes in the FP8 slices
  std::vector<Unit> units_;
  int current_ = -1;
  std::vector<Weights> weights_;
  std::vector<Grads> grads_;
  Tensor stage_{};                     // masters on their way through the plain type, some at a time
  Tensor travel_{};                    // gradients of a unit in the type they travel in, if another
  std::array<Weights, 2> evaluate_{};  // by lane: plain form of one unit's FP8 segment at a time
};

template <class F>
void ParameterStore::for_each_common(Stream& s, F&& f) {
  wait_for_gradients(s);  // what is gathered on the side stream, too
  for (const Unit& u : units_) {
    const Weights* w = keeps_weights(u) ? &weights_[size_t(u.weights)] : nullptr;
    for (const Group& g : u.groups) {
      const Param& p = g.param;
      const bool plain = p.segment == Precision::plain;
      if (w) f(g.name, (plain ? w->plain : w->q).part(p.offset, {p.shape.numel()}), u.holders.stride);
      const Local l = local(u, p.segment, p.offset, p.shape.numel());
      if (replicas(u) == 1) continue;
      for (const auto& [what, t] :
           std::array<std::pair<const char*, Tensor>, 3>{{{".master", l.master}, {".m", l.m}, {".v", l.v}}})
        if (t) f(g.name + what, t, u.holders.stride * shards(u));
    }
  }
  if (scales_.size()) f("FP8 scales of weights", scales_.state().scale, 1);
}

}  // namespace octet::BACKEND
