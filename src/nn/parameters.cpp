#include "nn/parameters.h"

#include <algorithm>

#include "base/rng.h"

namespace octet::BACKEND {
namespace {
int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
constexpr int64_t kStage = int64_t{1} << 22;  // elements
constexpr int kKept = 0;
constexpr size_t kPlain = size_t(Precision::plain), kFp8 = size_t(Precision::fp8);
Forms merge(Forms a, Forms b) { return {a.plain || b.plain, a.q || b.q, a.q_t || b.q_t}; }
}  // namespace

Arenas::Arenas(Stream& s, const MemoryPlan& plan) {
  for (size_t i = 0; i < arenas_.size(); ++i) arenas_[i] = std::make_unique<Arena>(s, kMemoryNames[i], plan.bytes[i]);
}
MemoryPlan Arenas::peak() const {
  MemoryPlan p;
  for (size_t i = 0; i < arenas_.size(); ++i) p.bytes[i] = arenas_[i]->peak();
  return p;
}

ParameterStore::ParameterStore(Comm& shard, Comm* replica, Stream& side, const ParameterOptions& options, Comm* all)
    : store_{&shard, replica},
      all_(all ? *all : shard),
      side_(side),
      point_(side.device()),
      options_(options),
      scales_(options.weight_scaling) {}

int ParameterStore::begin_unit(std::string name, Residence residence, const Holders* holders) {
  units_.push_back({.name = std::move(name), .residence = residence, .holders = holders ? *holders : store_});
  return current_ = num_units() - 1;
}
bool ParameterStore::any_travels() const { return std::any_of(units_.begin(), units_.end(), travels); }

Param ParameterStore::add(const std::vector<Part>& parts, Init init, Forms forms) {
  CHECK(!units_.empty() && !parts.empty(), "begin_unit() first");
  Unit& u = units_[size_t(current_)];
  const Precision precision = forms.q || forms.q_t ? Precision::fp8 : Precision::plain;
  Segment& segment = u.segments[size_t(precision)];
  segment.size = round_up(segment.size, kAlign);
  Param p{current_, precision, segment.size, parts[0].shape, forms};
  for (const Part& part : parts) {  // row-major with equal rows: standing adjacent is being merged
    if (parts.size() > 1)
      CHECK(part.shape.rank == 2 && part.shape[1] == p.shape[1], "'", part.name, "' ", part.shape, " merged with ",
            p.shape);
    u.entries.push_back({part.name, part.shape, init, precision, segment.size});
    if (&part != &parts[0]) p.shape.dim[0] += part.shape[0];
    segment.size += part.shape.numel();
  }
  if (precision == Precision::fp8) {
    p.slot = scales_.add(parts[0].name, DType::e4m3);
    u.forms = merge(u.forms, forms);
  }
  u.groups.push_back({parts[0].name, p});
  return p;
}

void ParameterStore::add_elsewhere(const std::vector<Part>& parts, Forms forms) {
  for (const Part& part : parts)
    units_[size_t(current_)].entries.push_back(
        {.name = part.name, .shape = part.shape, .init = {}, .segment = Precision::plain, .offset = 0, .here = false});
  if (forms.q || forms.q_t) scales_.add(parts[0].name, DType::e4m3);
}

int64_t ParameterStore::count() const {
  int64_t n = 0;
  for (const Unit& u : units_)
    for (const Entry& e : u.entries) n += e.shape.numel();
  return n;
}

void ParameterStore::materialise(Stream& s, const Arenas& arenas, uint64_t seed) {
  for (Unit& u : units_)
    for (Segment& g : u.segments) g.size = round_up(g.size, shards(u) * kAlign);
  lay_out(arenas);
  alloc_slices(arenas);
  scales_.materialise(s, arenas[Memory::weights]);
  if (scales_.size()) {
    scale_inv_ = arenas[Memory::weights].alloc(DType::f32, {scales_.size(), 4});
    if (options_.cast_through_plain && options_.plain != options_.master)
      stage_ = arenas[Memory::weights].alloc(options_.plain, {kStage});
  }
  zero(s);
  if (options_.trains) draw(s, seed);
  publish(s, Masters::changed);
}

// Buffers of whole weights and gradients: one set for each unit where they are kept; where not, a few in turn, so that
// while one unit computes others arrive (weights) or leave (gradients).
void ParameterStore::lay_out(const Arenas& arenas) {
  using Sizes = std::array<int64_t, 2>;
  struct Rotation {  // of the units of a lane
    size_t units = 0;
    std::vector<int> homes;
    Sizes largest{};
    Forms forms{};
  };
  const auto assign = [&](auto&& kept, int turns, auto& buffers, int Unit::*index, auto alloc) {
    std::array<Rotation, 2> rotations;
    for (Rotation& r : rotations) r.homes.assign(size_t(turns), -1);
    for (const Unit& u : units_)
      if (!kept(u) && u.residence != Residence::own) {
        Rotation& r = rotations[lane(u)];
        for (size_t k : {kPlain, kFp8}) r.largest[k] = std::max(r.largest[k], u.segments[k].size);
        r.forms = merge(r.forms, u.forms);
      }
    for (Unit& u : units_) {
      if (kept(u) || u.residence == Residence::own) {
        u.*index = int(buffers.size());
        buffers.push_back(alloc(Sizes{u.segments[kPlain].size, u.segments[kFp8].size}, u.forms));
      } else {
        Rotation& r = rotations[lane(u)];
        int& home = r.homes[r.units++ % r.homes.size()];
        if (home < 0) {
          home = int(buffers.size());
          buffers.push_back(alloc(r.largest, r.forms));
        }
        u.*index = home;
      }
    }
  };
  assign([&](const Unit& u) { return keeps_weights(u); }, 1 + options_.prefetch, weights_, &Unit::weights,
         [&](Sizes n, Forms f) {
           Arena& a = arenas[Memory::weights];
           Weights w;
           if (n[kPlain]) w.plain = a.alloc(options_.plain, {n[kPlain]});
           if (n[kFp8] && f.q) w.q = a.alloc(DType::e4m3, {n[kFp8]});
           if (n[kFp8] && f.q_t) w.q_t = a.alloc(DType::e4m3, {n[kFp8]});
           if (n[kFp8] && f.q_t && !w.q) w.q = a.alloc(DType::e4m3, {n[kFp8]});  // what is transposed
           if (n[kFp8] && f.plain) w.q_plain = a.alloc(options_.plain, {n[kFp8]});
           return w;
         });
  if (options_.trains)
    assign([&](const Unit& u) { return keeps_gradients(u); }, 2, grads_, &Unit::grads,
           [&](Sizes n, Forms) {
             Grads g;
             for (size_t k : {kPlain, kFp8})
               if (n[k]) g.whole[k] = arenas[Memory::gradients].alloc(options_.grad, {n[k]});
             return g;
           });
  int64_t travels = 0;
  Sizes largest{};  // by lane
  for (const Unit& u : units_) {
    if (ParameterStore::travels(u)) travels = std::max(travels, u.segments[kPlain].size + u.segments[kFp8].size);
    if (!u.forms.plain && (!options_.evaluate_fp8 || gathers_plain(u)))
      largest[lane(u)] = std::max(largest[lane(u)], u.segments[kFp8].size);
  }
  if (options_.trains && travels && options_.reduce != options_.grad)
    travel_ = arenas[Memory::communication].alloc(options_.reduce, {travels});
  for (size_t l = 0; l < largest.size(); ++l)
    if (largest[l]) evaluate_[l].q_plain = arenas[Memory::weights].alloc(options_.plain, {largest[l]});
}

void ParameterStore::alloc_slices(const Arenas& arenas) {
  for (Unit& u : units_)
    for (size_t k : {kPlain, kFp8}) {
      Segment& g = u.segments[k];
      if (g.size == 0) continue;
      const Shape mine{g.size / shards(u)};
      g.master = k == kPlain && shares_masters(u) ? slice(u, weights_[size_t(u.weights)].plain)
                                                  : arenas[Memory::optimizer].alloc(options_.master, mine);
      if (options_.trains) {
        g.m = arenas[Memory::optimizer].alloc(options_.moment, mine);
        g.v = arenas[Memory::optimizer].alloc(options_.moment, mine);
        g.grad = keeps_gradients(u) ? slice(u, grads_[size_t(u.grads)].whole[k])
                                    : arenas[Memory::gradients].alloc(options_.grad, mine);
      }
      if (k != kFp8) continue;
      g.q =
          keeps_weights(u) ? slice(u, weights_[size_t(u.weights)].q) : arenas[Memory::weights].alloc(DType::e4m3, mine);
    }
}

void ParameterStore::zero(Stream& s) {
  for (Unit& u : units_)
    for (Segment& g : u.segments) {
      if (g.size == 0) continue;
      fill_zero(s, g.master);  // padding stays zero for ever
      if (options_.trains)
        for (Tensor t : {g.m, g.v, g.grad}) fill_zero(s, t);
    }
}

void ParameterStore::draw(Stream& s, uint64_t seed) {
  for (Unit& u : units_)
    for (const Entry& e : u.entries) {
      if (!e.here) continue;
      const Local l = local(u, e.segment, e.offset, e.shape.numel());
      const int64_t drawn = e.init.rows ? e.init.rows * e.shape[1] : e.shape.numel();
      const int64_t count = std::clamp<int64_t>(drawn - l.first, 0, l.master.numel());
      if (count) init_normal(s, l.master.part(0, {count}), e.init.mean, e.init.std, seed, hash(e.name), l.first);
    }
}

void ParameterStore::publish(Stream& s, Masters masters) {
  if (!options_.delayed_weights) {
    if (masters == Masters::changed) measure_masters(s);  // after AdamW the maxima are there already
    scales_.update(s, &all_, {});                         // all ranks agree before any of them casts
  } else if (masters == Masters::stepped) {
    scales_.update(s, &all_, {});  // with the maxima that the casts before these measured
  } else if (scales_.size()) {
    fill_zero(s, scales_.state().amax);  // of weights that are gone
    measure_masters(s);
    scales_.fit_cold(s, all_);
    fill_zero(s, scales_.state().amax);  // the casts measure what they read
  }
  cast_slices(s);
  if (masters == Masters::changed)
    for (Unit& u : units_)
      if (const Segment& g = u.segments[kPlain]; g.size && keeps_weights(u) && !shares_masters(u))
        convert(s, slice(u, weights_[size_t(u.weights)].plain), g.master);
  for (Weights& w : weights_) w.unit = -1;
  for (Weights& w : evaluate_) w.unit = -1;
  for (Unit& u : units_)
    if (keeps_weights(u)) start_gather(s, u, Use::backward);
}

void ParameterStore::measure_masters(Stream& s) {
  for_each_group([&](const std::string&, const Param& p, const Local& l) {
    if (p.slot >= 0 && l.master.numel()) quantize(s, {.slot = scales_.measured(p.slot)}, l.master);
  });
}

void ParameterStore::cast_slices(Stream& s) {
  for (Unit& u : units_)
    for (const Group& g : u.groups) {
      const Param& p = g.param;
      if (p.slot < 0) continue;
      const Local l = local(u, p.segment, p.offset, p.shape.numel());
      const Segment& segment = u.segments[kFp8];
      const int64_t at = (static_cast<char*>(l.master.data) - static_cast<char*>(segment.master.data)) /
                         int64_t(size_of(options_.master));
      const Slot slot = options_.delayed_weights ? scales_.measured(p.slot) : scales_.frozen(p.slot);
      cast(s,
           {.q = segment.q.part(at, {l.master.numel()}),
            .scale_inv = scale_inv_.ptr<float>() + 4 * p.slot,
            .slot = slot},
           l.master, scales_.counts(p.slot));
    }
}

void ParameterStore::cast(Stream& s, const Operand& y, Tensor master, Tensor counts) {
  const auto into = [&](Operand to) {
    if (!stage_) return quantize(s, to, master);
    for (int64_t i = 0; i == 0 || i < master.numel();
         i += kStage) {  // once at least: scale_inv belongs to ranks without elements too
      const Shape some{std::min(kStage, master.numel() - i)};
      const Tensor rounded = stage_.part(0, some);
      convert(s, rounded, master.part(i, some));
      to.q = y.q.part(i, some);
      quantize(s, to, rounded);
    }
  };
  if (!counts || !master.numel()) return into(y);
  into({.q = y.q,
        .slot = {scales_.largest_scale(), nullptr, y.slot.format}});  // what is zero now is zero in the masters
  count_codes(s, counts.part(4, {4}), y.q);
  into(y);
  count_codes(s, counts.part(0, {4}), y.q);
}

Stream& ParameterStore::beside(Stream& s) {
  point_.record(s);
  point_.wait(side_);
  return side_;
}

void ParameterStore::start_gather(Stream& s, Unit& u, Use use) {
  gather(travels(u) ? beside(s) : s, u, use);
  if (!travels(u)) return;
  Weights& w = weights_[size_t(u.weights)];
  w.ready = std::make_unique<Event>(side_.device());
  w.ready->record(side_);
}

void ParameterStore::all_gather(Stream& s, Comm& shard, const std::vector<std::pair<Tensor, Tensor>>& whole_and_mine) {
  if (whole_and_mine.empty()) return;
  if (shard.size() == 1) {
    for (const auto& [whole, mine] : whole_and_mine)
      if (mine.data != whole.data) copy(s, whole, mine);
    return;
  }
  shard.begin_group();
  for (const auto& [whole, mine] : whole_and_mine) shard.all_gather(s, whole, mine);
  shard.end_group();
}

// The whole weights of a unit into its buffers. Those of the forward pass want transposing only for the backward one.
void ParameterStore::gather(Stream& s, Unit& u, Use use) {
  Weights& w = weights_[size_t(u.weights)];
  CHECK(!w.leased || w.unit < 0, "unit '", u.name, "' needs buffers that are leased");
  const int index = int(&u - units_.data());
  const Segment &plain = u.segments[kPlain], &fp8 = u.segments[kFp8];
  const bool codes = fp8.size && w.q && !(use == Use::evaluate && !options_.evaluate_fp8);
  if (w.unit != index || w.use != Use::forward || use != Use::backward || gathers_plain(u)) {
    std::vector<std::pair<Tensor, Tensor>> pieces;
    if (plain.size) {
      const Tensor whole = w.plain.part(0, {plain.size});
      if (!keeps_weights(u)) convert(s, slice(u, whole), plain.master);  // where kept, AdamW wrote the slice
      pieces.emplace_back(whole, slice(u, whole));
    }
    if (codes && !gathers_plain(u)) pieces.emplace_back(w.q.part(0, {fp8.size}), fp8.q);
    if (fp8.size && w.q_plain) {
      const Tensor whole = w.q_plain.part(0, {fp8.size});
      convert(s, slice(u, whole), fp8.master);
      pieces.emplace_back(whole, slice(u, whole));
    }
    all_gather(s, *u.holders.shard, pieces);
  }
  if (codes && gathers_plain(u)) cast_gathered(s, u, use);
  else if (codes && w.q_t && use == Use::backward)
    for (const Group& g : u.groups)
      if (const Param& p = g.param; p.forms.q_t)
        transpose(s, w.q_t.part(p.offset, {p.shape[1], p.shape[0]}), w.q.part(p.offset, p.shape));
  w.unit = index;
  w.use = use;
}

// As SageMaker SMP does it: the plain type travels, and every rank casts all of it, with the scale that all agreed on.
void ParameterStore::cast_gathered(Stream& s, Unit& u, Use use) {
  const Weights& w = weights_[size_t(u.weights)];
  const Segment& fp8 = u.segments[kFp8];
  Weights& lent = evaluate_[lane(u)];
  const Tensor whole = (w.q_plain ? w.q_plain : lent.q_plain).part(0, {fp8.size});
  if (!w.q_plain) {
    lent.unit = -1;
    convert(s, slice(u, whole), fp8.master);
    u.holders.shard->all_gather(s, whole, slice(u, whole));
  }
  for (const Group& g : u.groups) {
    const Param& p = g.param;
    if (p.slot < 0) continue;
    Operand y{.q = w.q.part(p.offset, p.shape),
              .scale_inv = scale_inv_.ptr<float>() + 4 * p.slot,
              .slot = scales_.frozen(p.slot)};
    if (p.forms.q_t && use == Use::backward) y.q_t = w.q_t.part(p.offset, {p.shape[1], p.shape[0]});
    quantize(s, y, whole.part(p.offset, p.shape));
  }
}

void ParameterStore::gather_plain_of_fp8(Stream& s, int unit) {
  Unit& u = units_[size_t(unit)];
  const Segment& fp8 = u.segments[kFp8];
  Weights& plain = evaluate_[lane(u)];
  if (!fp8.size || u.forms.plain || plain.unit == unit) return;
  wait_for_gradients(s);  // the side stream may be using the buffer, and this collective follows its last one
  const Tensor whole = plain.q_plain.part(0, {fp8.size});
  convert(s, slice(u, whole), fp8.master);
  if (shards(u) > 1) u.holders.shard->all_gather(s, whole, slice(u, whole));
  plain.unit = unit;
}

void ParameterStore::prefetch(Stream& s, int unit, Use use) {
  if (unit < 0 || unit >= num_units()) return;
  Unit& u = units_[size_t(unit)];
  Weights& w = weights_[size_t(u.weights)];
  const bool covers = w.use == use || (w.use == Use::backward && use == Use::forward) ||
                      (use == Use::backward && w.use == Use::forward && !u.forms.q_t);
  if (!(w.unit == unit && (keeps_weights(u) || covers))) start_gather(s, u, use);
}

ParameterStore::Lease ParameterStore::acquire(Stream& s, int unit, Use use) {
  prefetch(s, unit, use);
  const Unit& u = units_[size_t(unit)];
  if (use == Use::backward && !keeps_gradients(u)) open_gradients(s, unit);
  Weights& w = weights_[size_t(u.weights)];
  if (w.ready) w.ready->wait(s);
  w.ready.reset();
  if (use == Use::evaluate && !options_.evaluate_fp8) gather_plain_of_fp8(s, unit);
  if (keeps_weights(u)) w.use = use;
  return Lease(w.leased);
}

Operand ParameterStore::value(const Param& p) const {
  const Weights& w = leased(p.unit);
  if (p.segment == Precision::plain) return {.plain = w.plain.part(p.offset, p.shape)};
  if (w.use == Use::evaluate && !options_.evaluate_fp8)
    return {.plain = (w.q_plain ? w.q_plain : evaluate_[lane(units_[size_t(p.unit)])].q_plain).part(p.offset, p.shape)};
  Operand v{.scale_inv = scale_inv_.ptr<float>() + 4 * p.slot, .slot = scales_.frozen(p.slot)};
  if (p.forms.plain) v.plain = w.q_plain.part(p.offset, p.shape);
  if (p.forms.q) v.q = w.q.part(p.offset, p.shape);
  if (p.forms.q_t && w.use == Use::backward) v.q_t = w.q_t.part(p.offset, {p.shape[1], p.shape[0]});
  return v;
}

const ParameterStore::Weights& ParameterStore::leased(int unit) const {
  const Unit& u = units_[size_t(unit)];
  const Weights& w = weights_[size_t(u.weights)];
  CHECK(w.leased && w.unit == unit, "unit '", u.name, "' is not leased");
  return w;
}

ParameterStore::Local ParameterStore::local(const Unit& u, Precision precision, int64_t offset, int64_t count) const {
  const Segment& g = u.segments[size_t(precision)];
  const int64_t n = g.master.numel(), start = u.holders.shard->rank() * n;
  const int64_t first = std::clamp(offset, start, start + n), last = std::clamp(offset + count, start, start + n);
  const auto view = [&](Tensor t) { return t ? t.part(first - start, {last - first}) : t; };
  Local l{view(g.master), view(g.m), view(g.v), view(g.grad), {}, first - offset, counts(u)};
  if (keeps_weights(u) && precision == Precision::plain) l.weights = view(slice(u, weights_[size_t(u.weights)].plain));
  return l;
}
ParameterStore::Local ParameterStore::nowhere() const {
  const auto none = [](DType t) { return Tensor{nullptr, t, {0}}; };
  const Tensor moment = options_.trains ? none(options_.moment) : Tensor{};
  return {none(options_.master), moment, moment, none(options_.grad), {}, 0, false};
}

}  // namespace octet::BACKEND
