#pragma once
// A tiny Llama in FP8: its config, and the scales that training changes.
#include "cpu/tiny_model.h"

namespace octet::BACKEND {

inline Changes operator+(Changes a, const Changes& b) { return with(std::move(a), b); }

inline Changes fp8(const Changes& more = {}) {
  return Changes{"precision.param_dtype=bf16", "fp8.enabled=true", "fp8.amax_history_len=4"} + more;
}

using ScaleMap = std::map<std::string, float>;
inline ScaleMap scales_of(Session& s) {
  ScaleMap scales;
  for (DelayedScaling* all : {&s.scaling, &s.params.weight_scales()}) {
    const auto snapshot = all->save(s.stream);
    for (size_t i = 0; i < snapshot.names.size(); ++i) scales[snapshot.names[i]] = snapshot.scale[i];
  }
  return scales;
}

}  // namespace octet::BACKEND
