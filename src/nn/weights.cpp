// Weights of the parameter store: gathered from all ranks on the side stream, leased, and handed out as operands.
#include "nn/parameters.h"

namespace octet::BACKEND {

Stream& ParameterStore::side_after(Stream& s) {
  sync_.record(s);
  sync_.wait(side_);
  return side_;
}

void ParameterStore::start_gather(Stream& s, Unit& u, Use use) {
  gather(is_shared(u) ? side_after(s) : s, u, use);
  if (!is_shared(u)) return;
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

// Gathers the whole weights of a unit into its buffers. If they are still there from the forward pass, the backward
// pass only has to transpose them.
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
      if (!keeps_weights(u)) convert(s, slice(u, whole), plain.master);  // if kept, AdamW has written the slice
      pieces.emplace_back(whole, slice(u, whole));
    }
    if (codes && !gathers_plain(u)) pieces.emplace_back(w.q.part(0, {fp8.size}), fp8.q);
    if (fp8.size && w.q_plain) {
      const Tensor whole = w.q_plain.part(0, {fp8.size});
      convert(s, slice(u, whole), fp8.master);
      pieces.emplace_back(whole, slice(u, whole));
    }
    all_gather(s, *u.process_groups.shard, pieces);
  }
  if (codes && gathers_plain(u)) cast_gathered(s, u, use);
  else if (codes && w.q_t && use == Use::backward)
    for (const Group& g : u.groups)
      if (const Param& p = g.param; p.forms.q_t)
        transpose(s, w.q_t.part(p.offset, {p.shape[1], p.shape[0]}), w.q.part(p.offset, p.shape));
  w.unit = index;
  w.use = use;
}

// As in SageMaker SMP: weights are gathered in the plain type, and every rank casts all of them with the common scale.
void ParameterStore::cast_gathered(Stream& s, Unit& u, Use use) {
  const Weights& w = weights_[size_t(u.weights)];
  const Segment& fp8 = u.segments[kFp8];
  Weights& staging = fp8_as_plain_[pool_of(u)];
  const Tensor whole = (w.q_plain ? w.q_plain : staging.q_plain).part(0, {fp8.size});
  if (!w.q_plain) {
    staging.unit = -1;
    convert(s, slice(u, whole), fp8.master);
    u.process_groups.shard->all_gather(s, whole, slice(u, whole));
  }
  for (const Group& g : u.groups) {
    const Param& p = g.param;
    if (p.slot < 0) continue;
    Operand y{.q = w.q.part(p.offset, p.shape),
              .scale_inv = scale_inv_.ptr<float>() + 4 * p.slot,
              .slot = scales_.unmeasured(p.slot)};
    if (p.forms.q_t && use == Use::backward) y.q_t = w.q_t.part(p.offset, {p.shape[1], p.shape[0]});
    quantize(s, y, whole.part(p.offset, p.shape));
  }
}

void ParameterStore::gather_plain_of_fp8(Stream& s, int unit) {
  Unit& u = units_[size_t(unit)];
  const Segment& fp8 = u.segments[kFp8];
  Weights& plain = fp8_as_plain_[pool_of(u)];
  if (!fp8.size || u.forms.plain || plain.unit == unit) return;
  wait_for_gradients(s);  // the side stream may be using the buffer, and a communicator runs one collective at a time
  const Tensor whole = plain.q_plain.part(0, {fp8.size});
  convert(s, slice(u, whole), fp8.master);
  if (shards(u) > 1) u.process_groups.shard->all_gather(s, whole, slice(u, whole));
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
    return {
        .plain =
            (w.q_plain ? w.q_plain : fp8_as_plain_[pool_of(units_[size_t(p.unit)])].q_plain).part(p.offset, p.shape)};
  Operand v{.scale_inv = scale_inv_.ptr<float>() + 4 * p.slot, .slot = scales_.unmeasured(p.slot)};
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

}  // namespace octet::BACKEND
