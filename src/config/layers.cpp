#include "config/layers.h"

#include <algorithm>

#include "base/check.h"

namespace octet {

std::vector<std::string> merge_layers(const std::vector<std::string>& lines) {
  std::vector<std::pair<std::string, int>> groups;
  for (std::string line : lines) {
    const size_t at = line.find("layers.");
    if (at != std::string::npos) {
      const size_t begin = at + 7, end = line.find_first_not_of("0123456789", begin);
      if (end != std::string::npos && end > begin) line.replace(begin, end - begin, "*");
    }
    const auto known = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == line; });
    if (known != groups.end()) ++known->second;
    else groups.emplace_back(line, 1);
  }
  std::vector<std::string> merged;
  for (const auto& [line, count] : groups) merged.push_back(count > 1 ? concat(line, "  (", count, " times)") : line);
  return merged;
}

}  // namespace octet
