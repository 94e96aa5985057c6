#include "precision/scaling.h"

#include <bit>
#include <cmath>
#include <unordered_map>

#include "ops/formulas.h"

namespace octet::BACKEND {

int DelayedScaling::add(std::string name, DType format) {
  CHECK(!state_.scale, "'", name, "' comes after materialise()");
  names_.push_back(std::move(name));
  formats_.push_back(format);
  return size() - 1;
}

float DelayedScaling::largest_of(int slot) const {
  return std::ldexp(largest(formats_[size_t(slot)]), -options_.margin);
}

void DelayedScaling::materialise(Stream& s, Arena& memory) {
  const int64_t S = size();
  if (S == 0) return;
  state_ = {.scale = memory.alloc(DType::f32, {S, 4}),
            .amax = memory.alloc(DType::u32, {S}),
            .history = memory.alloc(DType::f32, {options_.history, S}),
            .largest = memory.alloc(DType::f32, {S}),
            .nonfinite = memory.alloc(DType::u32, {S}),
            .most_recent = options_.most_recent,
            .te_compat = options_.te_compat,
            .power_of_2 = options_.power_of_2};
  const std::vector<float> ones(size_t(4 * S), 1.f);
  std::vector<float> limits;
  for (int i = 0; i < S; ++i) limits.push_back(largest_of(i));
  copy_to_device(s, state_.scale.data, ones.data(), state_.scale.bytes());
  copy_to_device(s, state_.largest.data, limits.data(), state_.largest.bytes());
  for (Tensor t : {state_.amax, state_.history, state_.nonfinite}) fill_zero(s, t);
  cold_.assign(size_t(S), 1);
  if (options_.health) {
    counts_ = memory.alloc(DType::u32, {S, 2, 6});
    largest_scale_ = memory.alloc(DType::f32, {4});
    const std::vector<float> largest_scale(4, kLargestFloat);
    copy_to_device(s, largest_scale_.data, largest_scale.data(), largest_scale_.bytes());
    s.synchronize();
  }
  if (!slot_groups_.empty()) {
    groups_ = memory.alloc(DType::i32, {int64_t(slot_groups_.size()) / 2, 2});
    copy_to_device(s, groups_.data, slot_groups_.data(), groups_.bytes());
  }
  s.synchronize();  // the host vectors end here
}

void DelayedScaling::scale_cold_slots(Stream& s, Comm& group) {
  if (options_.cold_scale_one || std::count(cold_.begin(), cold_.end(), 1) == 0) return;
  group.all_reduce(s, state_.amax, Reduce::max);
  for (int i = 0; i < size(); ++i)
    if (cold_[size_t(i)]) current_scale(s, unmeasured(i).scale, measured(i).amax, largest_of(i), options_.power_of_2);
}

void DelayedScaling::update_uncounted(Stream& s, Comm* group, Tensor state) {
  if (size() == 0) return;
  if (group) group->all_reduce(s, state_.amax, Reduce::max);
  mark_warm(s);
  state_.rescale = updates_ % options_.interval == 0;
  update_scales(s, state_, state);
  if (groups_) inherit_scales(s, state_, groups_);
}

void DelayedScaling::update(Stream& s, Comm* group, Tensor state) {
  update_uncounted(s, group, state);
  if (size()) ++updates_;
}

// A first maximum that is zero or not finite leaves neither history nor scale: such a slot still measures itself.
// (Transformer Engine's rule takes what is not finite into the history.) The maxima are those of the group, so that its
// ranks agree. Slots of groups are not waited for: those that were not used inherit a scale on the device.
void DelayedScaling::mark_warm(Stream& s) {
  if (std::count(cold_.begin(), cold_.end(), 1) == 0) return;
  const size_t S = size_t(size());
  std::vector<uint32_t> amax(S);
  std::vector<float> largest(S, 0.f);
  if (!options_.cold_scale_one && !options_.current) {
    copy_to_host(s, amax.data(), state_.amax.data, state_.amax.bytes());
    copy_to_host(s, largest.data(), state_.largest.data, state_.largest.bytes());
    s.synchronize();
  }
  std::vector<char> grouped(S, 0);
  for (size_t g = 0; g < slot_groups_.size(); g += 2)
    std::fill_n(grouped.begin() + slot_groups_[g], slot_groups_[g + 1], char{1});
  for (size_t i = 0; i < S; ++i) {
    const bool finite = std::bit_cast<float>(amax[i]) <= kLargestFloat,
               used = amax[i] && (finite || options_.te_compat);
    const bool unknown = largest[i] == 0;  // not asked, or by the plan engine, where no answer comes
    if (unknown || used || (grouped[i] && finite)) cold_[i] = 0;
  }
}

Slot DelayedScaling::unmeasured(int slot) const {
  return {.scale = state_.scale.ptr<float>() + 4 * slot, .format = formats_[size_t(slot)]};
}
Slot DelayedScaling::measured(int slot) const {
  Slot s = unmeasured(slot);
  s.amax = state_.amax.ptr<uint32_t>() + slot;
  return s;
}

DelayedScaling::Snapshot DelayedScaling::save(Stream& s) const {
  const size_t S = size_t(size()), L = size_t(options_.history);
  Snapshot out{.updates = updates_, .history = int64_t(L) - 1, .names = names_, .cold = cold_};
  if (S == 0) return out;
  std::vector<float> scale(4 * S), rows(L * S);
  out.nonfinite.resize(S);
  copy_to_host(s, scale.data(), state_.scale.data, state_.scale.bytes());
  copy_to_host(s, rows.data(), state_.history.data, state_.history.bytes());
  copy_to_host(s, out.nonfinite.data(), state_.nonfinite.data, state_.nonfinite.bytes());
  s.synchronize();
  for (size_t i = 0; i < S; ++i) out.scale.push_back(scale[4 * i]), out.largest.push_back(largest_of(int(i)));
  out.rows.assign(rows.begin() + std::ptrdiff_t(S), rows.end());
  return out;
}

int DelayedScaling::load(Stream& s, const Snapshot& from) {
  const size_t S = size_t(size()), L = size_t(options_.history), F = from.names.size();
  if (S == 0) return 0;
  std::unordered_map<std::string, size_t> index;
  for (size_t j = 0; j < F; ++j) index[from.names[j]] = j;
  std::vector<float> scale(4 * S, 1.f), rows(L * S, 0.f);
  std::vector<uint32_t> nonfinite(S, 0);
  cold_.assign(S, 1);
  int found = 0;
  for (size_t i = 0; i < S; ++i) {
    const auto it = index.find(names_[i]);
    if (it == index.end()) continue;
    ++found;
    cold_[i] = from.cold.empty() ? from.updates == 0 : from.cold[it->second];
    scale[4 * i] = from.scale[it->second];
    if (!from.largest.empty() && from.largest[it->second] != largest_of(int(i)))
      scale[4 * i] = std::min(kLargestFloat, scale[4 * i] * (largest_of(int(i)) / from.largest[it->second]));
    nonfinite[i] = from.nonfinite[it->second];
    const size_t keep = std::min(L - 1, size_t(from.history));  // the newest rows, at the end of both
    for (size_t k = 0; k < keep; ++k)
      rows[(L - 1 - k) * S + i] = from.rows[(size_t(from.history) - 1 - k) * F + it->second];
  }
  copy_to_device(s, state_.scale.data, scale.data(), state_.scale.bytes());
  copy_to_device(s, state_.history.data, rows.data(), state_.history.bytes());
  copy_to_device(s, state_.nonfinite.data, nonfinite.data(), state_.nonfinite.bytes());
  s.synchronize();
  if (found) updates_ = from.updates;
  return found;
}

void DelayedScaling::start_counting(Stream& s) {
  CHECK(options_.health, "counts were not planned");
  if (size() == 0) return;
  fill_zero(s, counts_);
  counted_.assign(size_t(size()), 0);
  counting_ = true;
}

Tensor DelayedScaling::counts(int slot, int64_t codes) {
  if (!counting_) return {};
  int64_t& counted = counted_[size_t(slot)];
  const int64_t more = std::min(codes, kMostCounted);
  if (counted + more > int64_t{UINT32_MAX}) return {};
  counted += more;
  return counts_.part(12 * slot, {2, 6});
}

std::vector<CastHealth> DelayedScaling::examine(Stream& s) const {
  const size_t S = size_t(size()), L = size_t(options_.history);
  std::vector<CastHealth> all(S);
  if (S == 0) return all;
  std::vector<float> scale(4 * S), rows(L * S);
  std::vector<uint32_t> amax(S), counts(12 * S);
  copy_to_host(s, scale.data(), state_.scale.data, state_.scale.bytes());
  copy_to_host(s, rows.data(), state_.history.data, state_.history.bytes());
  copy_to_host(s, amax.data(), state_.amax.data, state_.amax.bytes());
  copy_to_host(s, counts.data(), counts_.data, counts_.bytes());
  s.synchronize();
  for (size_t i = 0; i < S; ++i) {
    CastHealth& h = all[i];
    const uint32_t* n = &counts[12 * i];
    const float top = largest(formats_[i]), seen = std::bit_cast<float>(amax[i]), limit = largest_of(int(i));
    const bool finite = seen <= kLargestFloat, own = options_.current || (cold_[i] && !options_.cold_scale_one);
    h.scale = own ? (finite && seen > 0 ? scale_of(limit, seen, options_.power_of_2) : 1.f) : scale[4 * i];
    h.amax = amax[i] ? seen : limit / h.scale;  // weights whose maximum has moved into the scale already
    h.elements = n[0];
    h.squares = double(n[4] + (uint64_t(n[5]) << 32)) * CodeSquares::kUnit * std::pow(double(top) / double(h.scale), 2);
    h.saturated = double(h.amax) * double(h.scale) > double(top) * (1 + 1e-6) || !finite
                      ? n[1]
                      : 0;                          // else the largest value is exact
    h.flushed = n[2] - std::min(n[2], n[8]);        // zero at the largest scale too: it was zero before the cast
    h.age = own || updates_ == 0 ? 0 : int64_t(L);  // unless it is among the rows; the oldest has just left them
    for (size_t k = L - 1; k >= 1; --k) {           // newest first
      const float a = rows[k * S + i];
      h.frozen |= !(a <= kLargestFloat);
      if (h.age == int64_t(L) && a > 0 && scale_of(limit, a, options_.power_of_2) == h.scale) h.age = int64_t(L - k);
    }
    h.frozen |= !finite;
  }
  return all;
}

}  // namespace octet::BACKEND
