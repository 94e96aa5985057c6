// The parameter store from declaration to random initialisation: which parameters there are, and which slices of them
// this rank holds.
#include "nn/parameters.h"

#include <algorithm>

#include "base/rng.h"

namespace octet::BACKEND {
namespace {
int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
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
    : default_groups_{&shard, replica},
      all_(all ? *all : shard),
      side_(side),
      sync_(side.device()),
      options_(options),
      scales_(options.weight_scaling) {}

int ParameterStore::begin_unit(std::string name, Buffers buffers, const ProcessGroups* process_groups) {
  units_.push_back({.name = std::move(name),
                    .buffers = buffers,
                    .process_groups = process_groups ? *process_groups : default_groups_});
  return current_ = num_units() - 1;
}
bool ParameterStore::any_is_shared() const { return std::any_of(units_.begin(), units_.end(), is_shared); }

Param ParameterStore::add(const std::vector<Part>& parts, Init init, Forms forms) {
  CHECK(!units_.empty() && !parts.empty(), "begin_unit() first");
  Unit& u = units_[size_t(current_)];
  const Precision precision = forms.q || forms.q_t ? Precision::fp8 : Precision::plain;
  Segment& segment = u.segments[size_t(precision)];
  segment.size = round_up(segment.size, kAlign);
  Param p{current_, precision, segment.size, parts[0].shape, forms};
  for (const Part& part : parts) {  // row-major with equal row lengths: adjacent, they are one matrix
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
  p.group = int(u.groups.size());
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

void ParameterStore::zero(Stream& s) {
  for (Unit& u : units_) {
    if (options_.trains && keeps_gradients(u)) begin_sums(s, u);
    for (Segment& g : u.segments) {
      if (g.size == 0) continue;
      fill_zero(s, g.master);  // padding stays zero
      if (options_.trains)
        for (Tensor t : {g.m, g.v, g.grad}) fill_zero(s, t);
    }
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

ParameterStore::Local ParameterStore::local(const Unit& u, Precision precision, int64_t offset, int64_t count) const {
  const Segment& g = u.segments[size_t(precision)];
  const int64_t n = g.master.numel(), start = u.process_groups.shard->rank() * n;
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
