#pragma once
// Names with wildcards, as fp8.exclude lists layers: * is any text, ? any character, [abc] and [a-z] a character of the
// set, [!a-z] one outside it.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/config.h"

namespace octet {

bool glob_match(std::string_view pattern, std::string_view text);  // the whole text

// Does one of the patterns name this layer? A pattern stands for a whole name, or for its end after a dot, with or
// without ".weight": "lm_head", "*.down_proj", "layers.0.*" and "embed*" all work on
// "model.layers.0.mlp.down_proj.weight".
bool names_layer(const std::vector<std::string>& patterns, std::string_view layer);

// A line for each pattern of fp8.exclude that names none of the model's parameters, and so has no effect.
std::vector<std::string> warnings_of(const Fp8Config& fp8,
                                     const std::vector<std::pair<std::string, Shape>>& parameters);

}  // namespace octet
