#pragma once
// ParameterStore: every trainable tensor, declared once, by the layer that owns it.
//
// Parameters are grouped in units (one transformer block is one unit). A unit has two segments: its FP8 matrices, and
// the rest. A segment is one flat range, padded to a multiple of shards x 128 elements, of which shard r owns the r-th
// slice: gathering weights is one all-gather a segment, reducing gradients is one reduce-scatter.
//
// What a rank holds, by ZeRO stage:                                Rajbhandari et al. 2019 (ZeRO), arXiv:1910.02054
//   stage            0        1        2        3
//   master, moments  whole    slice    slice    slice
//   gradients        whole    whole    slice    slice    (2, 3: whole while a unit's backward pass needs them)
//   weights          whole    whole    whole    slice    (3: whole while a unit's pass needs them)
// Whole gradients are all-reduced (0) or reduce-scattered in place (1) after the last micro-batch, slices after each.
//
// A layer's experts are a unit of their own with its own process groups: under expert parallelism they are sharded over
// the ranks that hold the same experts.
//
// Implemented in parameters.cpp (declaration, initialisation), layout.cpp (buffers and slices), weights.cpp
// (gathering), gradients.cpp (reducing) and casts.cpp (from updated masters to weights).
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "precision/scaling.h"

namespace octet::BACKEND {

struct Init {  // N(mean, std^2); std 0 draws nothing
  double mean = 0, std = 0;
  int64_t rows = 0;  // rows of a matrix that are drawn, the others being zero padding; 0: all
};
enum class Use : uint8_t { forward, backward, evaluate };
// Which buffers hold a unit's whole weights and gradients where they are not kept. own: the unit's own. rotating: a
// pool of a few that such units use in rotation. rotating_experts: a second pool, because a layer's experts are in use
// together with the rotating unit of their block.
enum class Buffers : uint8_t { own, rotating, rotating_experts };
struct ProcessGroups {      // of a unit
  Comm* shard = nullptr;    // ranks that hold one slice each
  Comm* replica = nullptr;  // ranks that hold the same slice, or null
  int stride = 1;           // ranks r, r + stride, ... hold the same parameters
};

struct Param {
  int unit = -1;
  Precision segment = Precision::plain;
  int64_t offset = 0;  // in the segment
  Shape shape;         // of all parts together
  Forms forms;         // what its products read in training
  int slot = -1;       // of its FP8 scale, if it has FP8 forms
  int group = -1;      // its number in the unit
};

struct ParameterOptions {
  DType plain = DType::f32, master = DType::f32, moment = DType::f32, grad = DType::f32, reduce = DType::f32;
  int zero_stage = 0;
  int prefetch = 1;  // units of each pool gathered ahead, where whole weights are not kept
  // false (evaluation, generation): no gradients, no moments, no initialisation; plain weights are their own masters
  bool trains = true;
  bool evaluate_fp8 = false;        // evaluation reads the FP8 weights instead of plain ones
  bool delayed_weights = false;     // weights are cast with the scale of earlier steps (fp8.weight_scaling)
  bool cast_through_plain = false;  // masters are rounded to the plain type before the FP8 cast, as TE's weights are
  bool gather_plain = false;        // FP8 weights are gathered in the plain type and cast by every rank
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
  // shard, replica: the process groups of units that name none of their own. side: the stream of collectives and their
  // casts, in parallel with the computing stream. all: ranks that together hold every parameter, if shard's do not.
  ParameterStore(Comm& shard, Comm* replica, Stream& side, const ParameterOptions&, Comm* all = nullptr);

  struct Part {
    std::string name;
    Shape shape;
  };
  int begin_unit(std::string name, Buffers, const ProcessGroups* = nullptr);  // -> its number; null: the store's groups
  int unit() const { return current_; }                                       // the unit that add() adds to
  void resume_unit(int unit) { current_ = unit; }
  // Several parts are adjacent in memory and form one matrix: one view, one product, one scale. A parameter with FP8
  // forms goes to the unit's FP8 segment.
  Param add(const std::vector<Part>&, Init, Forms forms = {.plain = true});
  // Declares a parameter that other ranks hold: its name and scale exist on all ranks.
  void add_elsewhere(const std::vector<Part>&, Forms);
  void materialise(Stream&, const Arenas&, uint64_t seed);  // after the model is built: allocates and initialises
  void draw(Stream&, uint64_t seed);                        // random initialisation; to be followed by publish()
  // What changed the masters: AdamW (stepped), which also wrote maxima and plain slices; or anything else.
  enum class Masters { changed, stepped };
  void publish(Stream&, Masters);  // makes new scales, FP8 slices and whole weights from the masters

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
  void prefetch(Stream&, int unit, Use);  // starts gathering; does nothing if out of range or already started
  bool holds(int unit) const {            // its whole weights are gathered, or being gathered
    return weights_[size_t(units_[size_t(unit)].weights)].unit == unit;
  }
  [[nodiscard]] Lease acquire(Stream&, int unit, Use);  // waits, in stream order, until the weights are gathered
  Operand value(const Param&) const;                    // of a leased unit, in the forms for the lease's Use
  // Gradients, whole, of the units whose backward pass it is: sums over the micro-batches of a step (stages 2, 3: over
  // one). A sum begins with its first term: where a product can overwrite d by it, d need not be filled with zeros.
  struct Sum {
    Tensor d;
    bool first_term;  // d holds nothing yet
  };
  Sum sum(const Param&);               // for what adds to d, or overwrites it by a first term
  Tensor grad(Stream&, const Param&);  // for what can only add: a sum without terms is filled with zeros first
  enum class Batch { more_follow, last };
  void reduce(Stream&, int unit, Batch);  // once the unit's gradients of this micro-batch are complete
  void wait_for_gradients(Stream&);       // for all that reduce() started
  void zero_gradients(Stream&);           // before the first micro-batch of a step: sums have no terms
  void sum_squares(Stream&, Tensor total /*(1) f64 +=*/, Tensor partial);  // of all gradients, over all ranks

  const ParameterOptions& options() const { return options_; }
  int num_units() const { return int(units_.size()); }
  int64_t count() const;  // parameters, without padding
  int ranks() const { return size_of_group(default_groups_.shard) * size_of_group(default_groups_.replica); }
  void sum_over_ranks(Stream&, Tensor);  // in place
  DelayedScaling& weight_scales() { return scales_; }
  // Where AdamW writes a weight's maximum; null under delayed scaling, where the casts measure it.
  uint32_t* weight_amax(int slot) const { return options_.delayed_weights ? nullptr : scales_.measured(slot).amax; }

  struct Local {  // what this rank holds of a parameter, without padding
    Tensor master, m, v, grad, weights;
    int64_t first;  // index of the first element within the parameter or group
    bool counts;    // this rank is the first of those that hold the slice
  };
  template <class F>
  void for_each(F&& f) const {  // f(name, whole shape, Local), for each part; empty slices for parts of other ranks
    for (const Unit& u : units_)
      for (const Entry& e : u.entries)
        f(e.name, e.shape, e.here ? local(u, e.segment, e.offset, e.shape.numel()) : nowhere());
  }
  template <class F>
  void for_each_group(F&& f) const {  // f(name of the first part, Param, Local), for the parameters this rank holds
    for (const Unit& u : units_)
      for (const Group& g : u.groups)
        f(g.name, g.param, local(u, g.param.segment, g.param.offset, g.param.shape.numel()));
  }
  // f(name, tensor, stride): everything that must be equal on ranks r, r + stride, ...; waits for it in stream order.
  template <class F>
  void for_each_common(Stream&, F&& f);
  template <class F>
  void for_each_gradient(F&& f) const {  // f(slice): all local gradients, with their padding (zero)
    for (const Unit& u : units_)
      for (const Segment& g : u.segments)
        if (g.size) f(g.grad);
  }
  template <class F>
  void for_each_gradient_once(F&& f) const {  // likewise, but only on the first of the ranks that hold the same slice
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
    bool here = true;  // false: other ranks hold it
  };
  struct Group {
    std::string name;
    Param param;
  };
  struct Segment {
    int64_t size = 0;                        // of all shards together
    Tensor master{}, m{}, v{}, grad{}, q{};  // this rank's slices
  };
  struct Unit {
    std::string name;
    Buffers buffers;
    ProcessGroups process_groups;
    std::array<Segment, 2> segments{};  // by Precision
    std::vector<Entry> entries{};
    std::vector<Group> groups{};
    std::vector<bool> begun{};     // by group: the sum that is its gradient has a term
    bool slices_begun = false;     // likewise the sums in the slices, where gradients are not kept
    Forms forms{};                 // the union of its FP8 parameters' forms
    int weights = -1, grads = -1;  // indices of its buffers in weights_ and grads_
  };
  struct Weights {                 // buffers of whole weights
    Tensor plain{};                // the plain segment
    Tensor q{}, q_t{}, q_plain{};  // the FP8 segment: codes, transposed codes, plain
    int unit = -1, leased = 0;     // the unit whose weights they hold; number of leases
    Use use = Use::forward;
    std::unique_ptr<Event> ready{};  // gathered; null: already waited for
  };
  struct Grads {                    // buffers of whole gradients
    std::array<Tensor, 2> whole{};  // by Precision
    int unit = -1;
    std::unique_ptr<Event> reduced{};  // the buffers are free again; null: already waited for
  };

  void lay_out(const Arenas&);
  void alloc_slices(const Arenas&);
  void zero(Stream&);
  void measure_masters(Stream&);
  void cast_slices(Stream&);
  void cast(Stream&, const Operand&, Tensor master, Tensor counts);
  void cast_gathered(Stream&, Unit&, Use);
  void start_gather(Stream&, Unit&, Use);
  void open_gradients(Stream&, int unit);  // takes a buffer of whole gradients, where they are not kept
  void begin_sums(Stream&, Unit&);         // the whole gradients are sums without terms; their padding is zero
  Tensor whole_gradient(const Param&) const;
  void gather(Stream&, Unit&, Use);
  Stream& side_after(Stream&);  // the side stream, after all work queued in this one so far
  void gather_plain_of_fp8(Stream&, int unit);
  static void all_gather(Stream&, Comm& shard, const std::vector<std::pair<Tensor, Tensor>>& whole_and_mine);
  // collective(tensor) for each tensor, converted to reduce_dtype and back if that differs; kept(tensor) is the part of
  // each that holds the result.
  template <class F, class Kept>
  void in_reduce_dtype(Stream&, Comm&, const std::vector<Tensor>&, F&& collective, Kept&& kept);
  const Weights& leased(int unit) const;
  static int size_of_group(const Comm* c) { return c ? c->size() : 1; }
  static int shards(const Unit& u) { return size_of_group(u.process_groups.shard); }
  static int replicas(const Unit& u) { return size_of_group(u.process_groups.replica); }
  // Other ranks hold it too, or parts of it.
  static bool is_shared(const Unit& u) { return shards(u) > 1 || replicas(u) > 1; }
  static bool counts(const Unit& u) { return !u.process_groups.replica || u.process_groups.replica->rank() == 0; }
  bool any_is_shared() const;
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
    return whole.part(u.process_groups.shard->rank() * n, {n});
  }
  // Index of the pool of rotating buffers. Units that are in use at the same time are in different pools.
  static size_t pool_of(const Unit& u) { return u.buffers == Buffers::rotating_experts; }

  static Forms merge(Forms a, Forms b) { return {a.plain || b.plain, a.q || b.q, a.q_t || b.q_t}; }

  static constexpr size_t kPlain = size_t(Precision::plain), kFp8 = size_t(Precision::fp8);  // of a unit's segments
  static constexpr int64_t kAlign = 128;               // elements: at least 128 bytes, whatever the type
  static constexpr int64_t kStage = int64_t{1} << 22;  // elements of stage_
  ProcessGroups default_groups_;                       // of units that name none of their own
  Comm& all_;
  Stream& side_;
  Event sync_;
  ParameterOptions options_;
  DelayedScaling scales_;
  Tensor scale_inv_{};  // (slots,4): of the codes in the FP8 slices
  std::vector<Unit> units_;
  int current_ = -1;
  std::vector<Weights> weights_;
  std::vector<Grads> grads_;
  Tensor stage_{};                         // cast_through_plain: kStage masters at a time, in the plain type
  Tensor reduce_{};                        // a unit's gradients in reduce_dtype, if that differs from their own
  std::array<Weights, 2> fp8_as_plain_{};  // by pool: plain form of one unit's FP8 segment at a time
};

template <class F>
void ParameterStore::for_each_common(Stream& s, F&& f) {
  wait_for_gradients(s);  // and for what the side stream gathers
  for (const Unit& u : units_) {
    const Weights* w = keeps_weights(u) ? &weights_[size_t(u.weights)] : nullptr;
    for (const Group& g : u.groups) {
      const Param& p = g.param;
      const bool plain = p.segment == Precision::plain;
      if (w) f(g.name, (plain ? w->plain : w->q).part(p.offset, {p.shape.numel()}), u.process_groups.stride);
      const Local l = local(u, p.segment, p.offset, p.shape.numel());
      if (replicas(u) == 1) continue;
      for (const auto& [what, t] :
           std::array<std::pair<const char*, Tensor>, 3>{{{".master", l.master}, {".m", l.m}, {".v", l.v}}})
        if (t) f(g.name + what, t, u.process_groups.stride * shards(u));
    }
  }
  if (scales_.size()) f("FP8 scales of weights", scales_.state().scale, 1);
}

}  // namespace octet::BACKEND
