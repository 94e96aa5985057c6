#include "precision/health.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "base/json.h"

namespace octet::BACKEND {
namespace {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g%%", 100 * share);
  return text;
}
double loss_of(const CastHealth& h) { return std::max(h.saturated_share(), h.flushed_share()); }

}  // namespace

std::string layer_of(const std::string& tensor) {
  std::string layer = tensor;
  for (const char* role : {".x", ".dy", ".weight"})
    if (layer.ends_with(role)) layer.resize(layer.rfind('.'));
  const size_t experts = layer.find(".experts.");  // they share the scales of their activations: they leave together
  return experts == std::string::npos ? layer : layer.substr(0, experts + 9) + "*" + layer.substr(layer.rfind('.'));
}

int HealthReport::worst() const {
  int w = casts.empty() ? -1 : 0;
  for (int i = 1; i < int(casts.size()); ++i)
    if (loss_of(casts[size_t(i)]) > loss_of(casts[size_t(w)])) w = i;
  return w;
}

int HealthReport::most_peaked() const {
  int m = casts.empty() ? -1 : 0;
  for (int i = 1; i < int(casts.size()); ++i)
    if (casts[size_t(i)].amax_over_rms() > casts[size_t(m)].amax_over_rms()) m = i;
  return m;
}

json HealthReport::to_json() const {
  json tensors = json::object();
  for (size_t i = 0; i < casts.size(); ++i) {
    const CastHealth& h = casts[i];
    tensors[names[i]] = {{"scale", h.scale},
                         {"amax", h.amax},
                         {"amax_over_rms", h.amax_over_rms()},
                         {"saturated", h.saturated_share()},
                         {"flushed", h.flushed_share()},
                         {"age", h.age},
                         {"frozen", h.frozen}};
  }
  const int w = worst();
  return {{"worst", w < 0 ? "" : names[size_t(w)]}, {"tensors", tensors}};
}

std::string HealthReport::summary() const {
  const int w = worst();
  if (w < 0) return "no tensor is in FP8";
  const CastHealth& h = casts[size_t(w)];
  const auto frozen = std::count_if(casts.begin(), casts.end(), [](const CastHealth& c) { return c.frozen; });
  const size_t m = size_t(most_peaked());
  char numbers[96], peak[32];
  std::snprintf(numbers, sizeof numbers, "scale %.3g, amax %.3g, age %lld", double(h.scale), double(h.amax),
                static_cast<long long>(h.age));
  std::snprintf(peak, sizeof peak, "%.3g", casts[m].amax_over_rms());
  return concat("worst ", names[size_t(w)], ": ", percent(h.saturated_share()), " saturated, ",
                percent(h.flushed_share()), " flushed to zero, ", numbers, "; ", frozen, " of ", casts.size(),
                " scales frozen; largest amax/rms ", peak, " of ", names[m]);
}

void share(HealthReport& report, Host& host) {
  const size_t n = report.casts.size();
  if (host.size() == 1 || n == 0) return;
  std::vector<CastHealth> all(n * size_t(host.size()));
  host.all_gather(all.data(), report.casts.data(), n * sizeof(CastHealth));
  for (size_t i = 0; i < n; ++i) {
    CastHealth sum = all[i];
    for (size_t r = 1; r < size_t(host.size()); ++r) {
      const CastHealth& h = all[r * n + i];
      if (!(h.amax <= sum.amax) && sum.amax == sum.amax) sum.amax = h.amax;  // NaN stays
      sum.elements += h.elements;
      sum.saturated += h.saturated;
      sum.flushed += h.flushed;
      sum.squares += h.squares;
      sum.age = std::max(sum.age, h.age);
      sum.frozen |= h.frozen;
    }
    report.casts[i] = sum;
  }
}

std::vector<std::string> HealthWatch::alarms(const HealthReport& report) {
  std::vector<std::string> messages;
  std::set<std::string> alarmed, seen;
  for (size_t i = 0; i < report.casts.size(); ++i) {
    const CastHealth& h = report.casts[i];
    const std::string layer = layer_of(report.names[i]);
    const auto check = [&](double share, double limit, const char* what, const char* remedy) {
      if (limit <= 0 || share <= limit) return;
      alarmed.insert(layer);
      messages.push_back(concat("FP8 of ", report.names[i], " at step ", report.step, ": ", percent(share),
                                " of its values ", what, " (alarm above ", percent(limit), "); ", remedy, " or list \"",
                                layer, "\" in fp8.exclude"));
    };
    seen.insert(layer);
    check(h.saturated_share(), config_.alarm_saturated, "saturate",
          "raise fp8.margin, lengthen fp8.amax_history_len, set fp8.recipe to current,");
    check(h.flushed_share(), config_.alarm_flushed, "become zero",
          config_.margin > 0 ? "lower fp8.margin, shorten fp8.amax_history_len" : "shorten fp8.amax_history_len");
  }
  for (const std::string& layer : seen) {
    if (alarmed.contains(layer)) ++in_a_row_[layer];
    else in_a_row_.erase(layer);
  }
  return messages;
}

std::vector<std::string> HealthWatch::take_fallbacks() {
  std::vector<std::string> layers;
  for (const auto& [layer, count] : in_a_row_)
    if (config_.fallback && count >= config_.fallback_after) layers.push_back(layer);
  for (const std::string& layer : layers) in_a_row_.erase(layer);
  return layers;
}

}  // namespace octet::BACKEND
