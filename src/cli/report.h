#pragma once
#include <cstdio>

#include "base/json.h"

namespace octet {

// Prints a report as one line of JSON. The names of files in it need not be UTF-8: what is not is replaced.
inline void print_report(const json& report) {
  std::printf("%s\n", report.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
}

}  // namespace octet
