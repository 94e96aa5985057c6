#pragma once
// The message with which something is refused as bad input; "" where it is not.
#include <string>

#include "base/check.h"

template <class F>
std::string refusal(F&& attempt) {
  try {
    attempt();
  } catch (const octet::InputError& e) { return e.what(); }
  return "";
}
