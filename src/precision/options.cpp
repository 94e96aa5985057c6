#include "config/globs.h"
#include "precision/options.h"

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
  if (shape[0] % 16 || shape[1] % 16) return concat("its shape ", shape, " is no multiple of 16");
  return "";
}

}  // namespace

Recipe make_recipe(const RunConfig& c) {
  Recipe recipe;
  recipe.gradient_format = c.fp8.format == Fp8Format::hybrid ? DType::e5m2 : DType::e4m3;
  recipe.evaluate_fp8 = c.fp8.enabled && c.fp8.eval;
  recipe.linear = [&c](const std::vector<std::string>& names, int64_t layer, Shape shape) {
    LinearRecipe r{.reason = obstacle(c, names, layer, shape)};
    if (!r.reason.empty()) return r;
    const std::array<bool, 3>&keep = c.fp8.override_linear_precision, &fast = c.fp8.fast_accum;
    const auto precision = [&](bool kept) { return kept ? Precision::plain : Precision::fp8; };
    return LinearRecipe{precision(keep[0]), precision(keep[1]), precision(keep[2]), fast[0], fast[1], fast[2], ""};
  };
  return recipe;
}

ScalingOptions activation_scaling(const Fp8Config& f) {
  return {.history = f.amax_history_len,
          .interval = f.interval,
          .margin = int(f.margin),
          .most_recent = f.amax_compute_algo == AmaxAlgo::most_recent,
          .te_compat = f.te_compat,
          .power_of_2 = f.power_of_2_scales,
          .current = f.recipe == Fp8Recipe::current,
          .cold_one = f.cold_start == ColdStart::one};
}

ScalingOptions weight_scaling(const Fp8Config& f) {
  ScalingOptions o = activation_scaling(f);
  o.current = false;
  if (f.weight_scaling == WeightScaling::delayed) return o;
  o.history = 1;
  o.interval = 1;
  return o;
}

}  // namespace octet::BACKEND
