// After an update: from the master weights of the parameter store to what matrix products read: new FP8 scales, this
// rank's FP8 slices, and whole weights where they are kept.
#include <algorithm>

#include "nn/parameters.h"

namespace octet::BACKEND {

void ParameterStore::publish(Stream& s, Masters masters) {
  wait_for_gradients(s);  // what is gathered there still reads what is cast here, in groups that agree here
  if (!options_.delayed_weights) {
    // After AdamW the maxima are there already. All ranks agree before any of them casts.
    if (masters == Masters::stepped) {
      scales_.update(s, &all_, {});
    } else {
      measure_masters(s);
      scales_.update_uncounted(s, &all_, {});
    }
  } else if (masters == Masters::stepped) {
    scales_.update(s, &all_, {});  // with the maxima that the previous casts measured
  } else if (scales_.size()) {
    fill_zero(s, scales_.state().amax);  // maxima of the weights before the change
    measure_masters(s);
    scales_.scale_cold_slots(s, all_);
    fill_zero(s, scales_.state().amax);  // the casts measure what they read
  }
  cast_slices(s);
  if (masters == Masters::changed)
    for (Unit& u : units_)
      if (const Segment& g = u.segments[kPlain]; g.size && keeps_weights(u) && !shares_masters(u))
        convert(s, slice(u, weights_[size_t(u.weights)].plain), g.master);
  for (Weights& w : weights_) w.unit = -1;
  for (Weights& w : fp8_as_plain_) w.unit = -1;
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
      const Slot slot = options_.delayed_weights ? scales_.measured(p.slot) : scales_.unmeasured(p.slot);
      cast(s,
           {.q = segment.q.part(at, {l.master.numel()}),
            .scale_inv = scale_inv_.ptr<float>() + 4 * p.slot,
            .slot = slot},
           l.master, scales_.counts(p.slot, l.master.numel()));
    }
}

void ParameterStore::cast(Stream& s, const Operand& y, Tensor master, Tensor counts) {
  const auto into = [&](Operand to) {
    if (!stage_) return quantize(s, to, master);
    for (int64_t i = 0; i == 0 || i < master.numel();
         i += kStage) {  // at least once: ranks without elements need scale_inv too
      const Shape some{std::min(kStage, master.numel() - i)};
      const Tensor rounded = stage_.part(0, some);
      convert(s, rounded, master.part(i, some));
      to.q = y.q.part(i, some);
      quantize(s, to, rounded);
    }
  };
  if (!counts || !master.numel()) return into(y);
  into({.q = y.q,
        .slot = {scales_.largest_scale(), nullptr, y.slot.format}});  // codes that are zero now were zero masters
  count_codes(s, counts.part(6, {6}), y.q);
  into(y);
  count_codes(s, counts.part(0, {6}), y.q);
}

}  // namespace octet::BACKEND
