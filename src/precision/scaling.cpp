#include "precision/scaling.h"

#include <cmath>
#include <unordered_map>

namespace octet::BACKEND {

int DelayedScaling::add(std::string name, DType format) {
  CHECK(!state_.scale, "'", name, "' comes after materialise()");
  names_.push_back(std::move(name));
  formats_.push_back(format);
  return size() - 1;
}

float DelayedScaling::largest_of(int slot) const { return std::ldexp(largest(formats_[size_t(slot)]), -options_.margin); }

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
  s.synchronize();  // the host vectors end here
}

void DelayedScaling::update(Stream& s, Comm* group, Tensor state) {
  if (size() == 0) return;
  if (group) group->all_reduce(s, state_.amax, Reduce::max);
  state_.rescale = updates_ % options_.interval == 0;
  update_scales(s, state_, state);
  ++updates_;
}

Slot DelayedScaling::frozen(int slot) const {
  return {.scale = state_.scale.ptr<float>() + 4 * slot, .format = formats_[size_t(slot)]};
}
Slot DelayedScaling::measured(int slot) const {
  Slot s = frozen(slot);
  s.amax = state_.amax.ptr<uint32_t>() + slot;
  return s;
}

DelayedScaling::Snapshot DelayedScaling::save(Stream& s) const {
  const size_t S = size_t(size()), L = size_t(options_.history);
  Snapshot out{.updates = updates_, .history = int64_t(L) - 1, .names = names_};
  if (S == 0) return out;
  std::vector<float> scale(4 * S), rows(L * S);
  out.nonfinite.resize(S);
  copy_to_host(s, scale.data(), state_.scale.data, state_.scale.bytes());
  copy_to_host(s, rows.data(), state_.history.data, state_.history.bytes());
  copy_to_host(s, out.nonfinite.data(), state_.nonfinite.data, state_.nonfinite.bytes());
  s.synchronize();
  for (size_t i = 0; i < S; ++i) out.scale.push_back(scale[4 * i]);
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
  int found = 0;
  for (size_t i = 0; i < S; ++i) {
    const auto it = index.find(names_[i]);
    if (it == index.end()) continue;
    ++found;
    scale[4 * i] = from.scale[it->second];
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

}  // namespace octet::BACKEND
