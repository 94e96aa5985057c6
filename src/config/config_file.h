#pragma once
// The config.json that is written next to weights, for both transformers 4 and 5.
#include "config/model.h"

namespace octet {

json write_config_file(const ModelConfig& config, const std::string& dtype);  // dtype: float32, bfloat16 or float16

}  // namespace octet
