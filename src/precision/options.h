#pragma once
// From the config's section fp8 to the recipe of layers and the options of scales.
#include "config/config.h"
#include "precision/recipe.h"
#include "precision/scaling.h"

namespace octet::BACKEND {

Recipe make_recipe(const RunConfig&);  // refers to the config: it must outlive the recipe
ScalingOptions activation_scaling(const RunConfig&);
ScalingOptions weight_scaling(const RunConfig&);  // a history of one unless fp8.weight_scaling is "delayed"

}  // namespace octet::BACKEND
