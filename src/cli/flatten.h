#pragma once
// JSON as a list of paths and texts: {"a": {"b": 1}} is a.b = 1. Lists stay as they are printed.
#include <map>
#include <string>

#include "base/json.h"

namespace octet {

inline std::map<std::string, std::string> flatten(const json& value, const std::string& path = "") {
  std::map<std::string, std::string> all;
  if (!value.is_object()) {
    all[path] = value.is_string() ? value.get<std::string>() : value.dump();
    return all;
  }
  for (const auto& [key, item] : value.items()) all.merge(flatten(item, path.empty() ? key : path + "." + key));
  return all;
}

}  // namespace octet
