#include "precision/options.h"

#include <algorithm>

#include "config/globs.h"

namespace octet::BACKEND {
namespace {

// Why this Linear cannot run in FP8, or "".
std::string obstacle(const RunConfig& c, const std::vector<std::string>& names, int64_t layer, Shape shape) {
  const Fp8Config& f = c.fp8;
  if (!f.enabled) return "fp8.enabled is false";
  if (layer < f.bf16_first_layers) return "fp8.bf16_first_layers";
  if (layer >= c.model.num_layers - f.bf16_last_layers) return "fp8.bf16_last_layers";
  for (const std::string& name : names)
    if (names_layer(f.exclude, name)) return "fp8.exclude";
  if (shape[0] % 16 || shape[1] % 16) return concat("its shape ", shape, " is not a multiple of 16");
  if (*f.override_linear_precision == std::array{true, true, true}) return "fp8.override_linear_precision";
  return "";
}

// "a.b.{q_proj,k_proj}" for "a.b.q_proj.weight" and "a.b.k_proj.weight". Of experts, the first stands for all.
std::string joined(const std::vector<std::string>& names) {
  const size_t folder = names[0].rfind('.', names[0].rfind('.') - 1) + 1;  // where the last part but .weight begins
  std::vector<std::string> ends;
  for (const std::string& name : names) {
    const std::string layer = name.substr(0, name.rfind('.'));
    const std::string end = layer.substr(std::min(layer.size(), layer.rfind('.') + 1));
    if (std::find(ends.begin(), ends.end(), end) == ends.end()) ends.push_back(end);
  }
  std::string all;
  for (const std::string& end : ends) all += (all.empty() ? "" : ",") + end;
  if (ends.size() > 1) all = "{" + all + "}";
  if (ends.size() < names.size()) all += concat(" and ", names.size() / ends.size() - 1, " others alike");
  return names[0].substr(0, folder) + all;
}

std::string line_of(const std::string& layer, const LinearRecipe& r, const char* plain, DType gradient) {
  const std::string e4m3 = name_of(DType::e4m3), fp8[] = {e4m3, name_of(gradient), name_of(gradient)};
  const Precision precision[] = {r.fprop, r.dgrad, r.wgrad};
  const char* names[] = {"fprop", "dgrad", "wgrad"};
  std::string line = layer;
  for (size_t i = 0; i < 3; ++i)
    line += concat("  ", names[i], " ", precision[i] == Precision::fp8 ? concat(fp8[i], "*", e4m3) : plain);
  return r.reason.empty() ? line : concat(line, "  (", r.reason, ")");
}

}  // namespace

Recipe make_recipe(const RunConfig& c) {
  Recipe recipe;
  recipe.gradient_format = c.fp8.format == Fp8Format::hybrid ? DType::e5m2 : DType::e4m3;
  recipe.per_expert_scales = c.fp8.moe_per_expert_scales;
  recipe.report->push_back(
      line_of("lm_head", {.reason = "never in FP8"}, name_of(c.precision.param_dtype), DType::e4m3));
  recipe.linear = [&c, report = recipe.report, format = recipe.gradient_format](const std::vector<std::string>& names,
                                                                                int64_t layer, Shape shape) {
    LinearRecipe r{.reason = obstacle(c, names, layer, shape)};
    if (r.reason.empty()) {
      const std::array<bool, 3>&keep = c.fp8.override_linear_precision, &fast = c.fp8.fast_accum;
      const auto precision = [&](bool kept) { return kept ? Precision::plain : Precision::fp8; };
      r = {precision(keep[0]), precision(keep[1]), precision(keep[2]), fast[0], fast[1], fast[2], ""};
    }
    report->push_back(line_of(joined(names), r, name_of(c.precision.param_dtype), format));
    return r;
  };
  return recipe;
}

ScalingOptions activation_scaling(const RunConfig& c) {
  const Fp8Config& f = c.fp8;
  return {.history = f.amax_history_len,
          .interval = f.interval,
          .margin = int(f.margin),
          .most_recent = f.amax_compute_algo == AmaxAlgo::most_recent,
          .te_compat = f.te_compat,
          .power_of_2 = f.power_of_2_scales,
          .current = f.recipe == Fp8Recipe::current,
          .cold_scale_one = f.cold_start == ColdStart::one,
          .health = c.log.fp8_every > 0};
}

ScalingOptions weight_scaling(const RunConfig& c) {
  ScalingOptions o = activation_scaling(c);
  o.current = false;
  if (c.fp8.weight_scaling == WeightScaling::delayed) return o;
  o.history = 1;
  o.interval = 1;
  return o;
}

}  // namespace octet::BACKEND
