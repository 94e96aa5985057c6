// Gradients of the parameter store: whole while a unit's backward writes them, then reduced over ranks beside the
// computing stream.
#include "nn/parameters.h"

namespace octet::BACKEND {

Tensor ParameterStore::grad(const Param& p) const {
  const Unit& u = units_[size_t(p.unit)];
  const Grads& g = grads_[size_t(u.grads)];
  CHECK(keeps_gradients() || g.unit == p.unit, "unit '", u.name, "' has no gradient buffers now");
  return g.whole[size_t(p.segment)].part(p.offset, p.shape);
}

// Not in prefetch(): the buffer's last unit has only just begun its reduction there, and waiting would expose it.
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

template <class F>
void ParameterStore::travelling(Stream& s, Tensor t, F&& collective) {
  if (!travel_) return collective(t);
  const Tensor as = travel_.part(0, {t.numel()});
  convert(s, as, t);
  collective(as);
}

void ParameterStore::reduce(Stream& s, int unit, Batch batch) {
  const bool last = batch == Batch::last;
  if (!overlaps() || (keeps_gradients() && !last)) return;
  Unit& u = units_[size_t(unit)];
  Grads& whole = grads_[size_t(u.grads)];
  Stream& side = beside(s);
  for (size_t k = 0; k < u.segments.size(); ++k) {
    const Segment& g = u.segments[k];
    if (!g.size) continue;
    const Tensor all = whole.whole[k].part(0, {g.size});
    if (shards() > 1)
      travelling(side, all, [&](Tensor t) {
        shard_.reduce_scatter(side, slice(t), t);
        if (travel_) convert(side, slice(all), slice(t));
      });
    if (!keeps_gradients())
      BACKEND::add(side, g.grad, g.grad, slice(all));  // the operation, which the member add() hides
    if (last && replica_ && replica_->size() > 1)
      travelling(side, g.grad, [&](Tensor t) {
        replica_->all_reduce(side, t, Reduce::sum);
        if (travel_) convert(side, g.grad, t);
      });
  }
  if (keeps_gradients()) return;
  whole.unit = -1;
  whole.reduced = std::make_unique<Event>(side.device());
  whole.reduced->record(side);
}

void ParameterStore::wait_for_gradients(Stream& s) {
  if (!overlaps()) return;
  point_.record(side_);
  point_.wait(s);
}

void ParameterStore::zero_gradients(Stream& s) {
  if (keeps_gradients()) {
    for (Grads& g : grads_)
      for (Tensor t : g.whole)
        if (t) fill_zero(s, t);
  } else {
    for_each_gradient([&](Tensor t) { fill_zero(s, t); });
  }
}

void ParameterStore::sum_over_ranks(Stream& s, Tensor t) {
  wait_for_gradients(s);  // this collective follows the last one of the side stream
  if (shards() > 1) shard_.all_reduce(s, t, Reduce::sum);
  if (replica_ && replica_->size() > 1) replica_->all_reduce(s, t, Reduce::sum);
}

}  // namespace octet::BACKEND
