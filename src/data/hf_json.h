#pragma once
// Reading tokenizer.json. Its keys are looked up, so objects are sorted: a vocabulary in order of
// writing is searched linearly.
#include <nlohmann/json.hpp>
#include <string>

#include "base/check.h"

namespace octet {

using Fields = nlohmann::json;

// The value of `key` as T; `otherwise` where it is missing or null; InputError where it is something else.
template <class T>
T field(const Fields& object, const char* key, T otherwise, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return otherwise;
  try {
    return found->get<T>();
  } catch (const Fields::exception&) { bad_input(where, ".", key, ": unexpected value ", found->dump().substr(0, 80)); }
}

inline const Fields& part(const Fields& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) bad_input(where, ".", key, " is missing");
  return *found;
}

inline std::string type_of(const Fields& object, const std::string& where) {
  if (!object.is_object()) bad_input(where, ": expected an object, got ", object.dump().substr(0, 80));
  return field<std::string>(object, "type", "", where);
}

}  // namespace octet
