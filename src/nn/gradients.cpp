// Gradients of the parameter store: whole while a unit's backward pass writes them, then reduced over
// ranks on the side stream.
#include "nn/parameters.h"

namespace octet::BACKEND {

Tensor ParameterStore::grad(const Param& p) const {
  const Unit& u = units_[size_t(p.unit)];
  const Grads& g = grads_[size_t(u.grads)];
  CHECK(keeps_gradients(u) || g.unit == p.unit, "unit '", u.name, "' has no gradient buffers now");
  return g.whole[size_t(p.segment)].part(p.offset, p.shape);
}

// Called by acquire(), not by prefetch(): at that time the buffer's previous unit has only just begun to be reduced,
// and waiting for it would expose the communication.
void ParameterStore::open_gradients(Stream& s, int unit) {
  Unit& u = units_[size_t(unit)];
  Grads& g = grads_[size_t(u.grads)];
  if (g.unit == unit) return;
  if (g.reduced) g.reduced->wait(s);
  g.reduced.reset();
  for (size_t k = 0; k < u.segments.size(); ++k)
    if (u.segments[k].size) fill_zero(s, g.whole[k].part(0, {u.segments[k].size}));
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
  if (!keeps_gradients(u))
    for (size_t i = 0; i < all.size(); ++i)
      BACKEND::add(side, mine[i], mine[i], slice(u, all[i]));  // the op; the member add() hides it
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
  for (const Unit& u : units_)
    for (size_t k = 0; k < u.segments.size(); ++k)
      if (const Segment& g = u.segments[k]; g.size)
        fill_zero(s, keeps_gradients(u) ? grads_[size_t(u.grads)].whole[k] : g.grad);
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
