// Gradients of the parameter store: whole while a unit's backward pass writes them, then reduced over
// ranks on the side stream.
#include "nn/parameters.h"

namespace octet::BACKEND {

Tensor ParameterStore::whole_gradient(const Param& p) const {
  const Unit& u = units_[size_t(p.unit)];
  const Grads& g = grads_[size_t(u.grads)];
  CHECK(keeps_gradients(u) || g.unit == p.unit, "unit '", u.name, "' has no gradient buffers now");
  return g.whole[size_t(p.segment)].part(p.offset, p.shape);
}

ParameterStore::Sum ParameterStore::sum(const Param& p) {
  const Tensor d = whole_gradient(p);
  auto begun = units_[size_t(p.unit)].begun[size_t(p.group)];
  const bool first_term = !begun;
  begun = true;
  return {d, first_term};
}

Tensor ParameterStore::grad(Stream& s, const Param& p) {
  const Sum sum = this->sum(p);
  if (sum.first_term) fill_zero(s, sum.d);
  return sum.d;
}

void ParameterStore::begin_sums(Stream& s, Unit& u) {
  u.begun.assign(u.groups.size(), false);
  std::array<int64_t, 2> end{};  // of what came before, in each segment
  const auto pad = [&](size_t k, int64_t until) {
    if (until > end[k]) fill_zero(s, grads_[size_t(u.grads)].whole[k].part(end[k], {until - end[k]}));
  };
  for (const Group& g : u.groups) {
    const size_t k = size_t(g.param.segment);
    pad(k, g.param.offset);
    end[k] = g.param.offset + g.param.shape.numel();
  }
  for (size_t k = 0; k < u.segments.size(); ++k) pad(k, u.segments[k].size);
}

// Called by acquire(), not by prefetch(): at that time the buffer's previous unit has only just begun to be reduced,
// and waiting for it would expose the communication.
void ParameterStore::open_gradients(Stream& s, int unit) {
  Unit& u = units_[size_t(unit)];
  Grads& g = grads_[size_t(u.grads)];
  if (g.unit == unit) return;
  if (g.reduced) g.reduced->wait(s);
  g.reduced.reset();
  begin_sums(s, u);
  g.unit = unit;
}

template <class F, class Kept>
void ParameterStore::in_reduce_dtype(Stream& s, Comm& comm, const std::vector<Tensor>& tensors, F&& collective,
                                     Kept&& kept) {
  std::vector<Tensor> as = tensors;
  if (reduce_) {
    int64_t at = 0;
    for (Tensor& t : as) {
      const Tensor narrow = reduce_.part(at, {t.numel()});
      convert(s, narrow, t);
      at += t.numel();
      t = narrow;
    }
  }
  comm.begin_group();
  for (const Tensor& t : as) collective(t);
  comm.end_group();
  for (size_t i = 0; reduce_ && i < as.size(); ++i) convert(s, kept(tensors[i]), kept(as[i]));
}

void ParameterStore::reduce(Stream& s, int unit, Batch batch) {
  const bool last = batch == Batch::last;
  Unit& u = units_[size_t(unit)];
  for (const Group& g : u.groups) grad(s, g.param);  // zeros, where this pass had no term
  if (!is_shared(u) || (keeps_gradients(u) && !last)) return;
  Grads& whole = grads_[size_t(u.grads)];
  Stream& side = side_after(s);
  std::vector<Tensor> all, mine;  // of each segment
  for (size_t k = 0; k < u.segments.size(); ++k)
    if (const Segment& g = u.segments[k]; g.size) {
      all.push_back(whole.whole[k].part(0, {g.size}));
      mine.push_back(g.grad);
    }
  const ProcessGroups& h = u.process_groups;
  if (shards(u) > 1)
    in_reduce_dtype(
        side, *h.shard, all, [&](Tensor t) { h.shard->reduce_scatter(side, slice(u, t), t); },
        [&](Tensor t) { return slice(u, t); });
  if (!keeps_gradients(u)) {
    for (size_t i = 0; i < all.size(); ++i) {
      if (u.slices_begun) BACKEND::add(side, mine[i], mine[i], slice(u, all[i]));  // the op; the member add() hides it
      else copy(side, mine[i], slice(u, all[i]));
    }
    u.slices_begun = true;
  }
  if (last && replicas(u) > 1)
    in_reduce_dtype(
        side, *h.replica, mine, [&](Tensor t) { h.replica->all_reduce(side, t, Reduce::sum); },
        [](Tensor t) { return t; });
  if (keeps_gradients(u)) return;
  whole.unit = -1;
  whole.reduced = std::make_unique<Event>(side.device());
  whole.reduced->record(side);
}

void ParameterStore::wait_for_gradients(Stream& s) {
  if (!any_is_shared()) return;
  sync_.record(side_);
  sync_.wait(s);
}

void ParameterStore::zero_gradients(Stream& s) {
  for (Unit& u : units_) {
    u.slices_begun = false;
    if (keeps_gradients(u)) begin_sums(s, u);
  }
}

void ParameterStore::sum_squares(Stream& s, Tensor total, Tensor partial) {
  wait_for_gradients(s);
  for_each_gradient_once([&](Tensor g) { sum_of_squares(s, total, g, partial); });
  sum_over_ranks(s, total);
}

void ParameterStore::sum_over_ranks(Stream& s, Tensor t) {
  wait_for_gradients(s);  // a communicator runs one collective at a time: this one follows the side stream's last
  for (Comm* group : {default_groups_.shard, default_groups_.replica})
    if (size_of_group(group) > 1) group->all_reduce(s, t, Reduce::sum);
}

}  // namespace octet::BACKEND
