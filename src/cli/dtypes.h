#pragma once
// Types in which weights are exchanged: as torch names them, as octet's options name them, as safetensors stores them.
#include <optional>
#include <string>
#include <string_view>

#include "tensor/tensor.h"

namespace octet {

struct ExchangeType {
  const char *name, *option, *stored;
  DType dtype;
};
inline constexpr ExchangeType kExchangeTypes[] = {{"float32", "fp32", "F32", DType::f32},
                                                  {"bfloat16", "bf16", "BF16", DType::bf16},
                                                  {"float16", "fp16", "F16", DType::f16}};

inline std::optional<ExchangeType> exchange_type(std::string_view any_name) {
  for (const ExchangeType& t : kExchangeTypes)
    if (any_name == t.name || any_name == t.option || any_name == t.stored) return t;
  return {};
}
inline std::string long_name(std::string_view stored) {  // "float32" for "F32"; "" for other types
  const auto type = exchange_type(stored);
  return type ? type->name : "";
}

}  // namespace octet
