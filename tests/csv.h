#pragma once
// Rows of a golden CSV file, without its head line.
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"

namespace octet {

inline std::vector<std::vector<std::string>> read_csv(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw SystemError("cannot read " + path);
  std::vector<std::vector<std::string>> rows;
  std::string line, cell;
  for (std::getline(file, line); std::getline(file, line);) {
    std::stringstream in(line);
    rows.emplace_back();
    while (std::getline(in, cell, ',')) rows.back().push_back(cell);
  }
  return rows;
}
inline uint32_t hex(const std::string& s) { return uint32_t(std::stoul(s, nullptr, 16)); }

}  // namespace octet
