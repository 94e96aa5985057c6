#pragma once
// A config.json to lie beside weights, for transformers 4 and 5 alike.
#include "config/model.h"

namespace octet {

json write_config_file(const ModelConfig& config, const std::string& dtype);  // dtype: float32, bfloat16 or float16

}  // namespace octet
