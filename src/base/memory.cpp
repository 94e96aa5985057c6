#include "base/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

namespace octet {
namespace {
namespace fs = std::filesystem;

// The number behind `key` in a file of lines "key number"; of a file that is one number for key "".
std::optional<int64_t> number_in(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  std::string word;
  int64_t value = 0;
  if (key.empty()) return in >> value ? std::optional(value) : std::nullopt;
  for (std::string line; in >> word; std::getline(in, line))
    if (word == key) return in >> value ? std::optional(value) : std::nullopt;
  return {};
}

// What a control group leaves: its limit less what it uses. Its cache of files that nobody has used for a while counts
// as free.
std::optional<int64_t> left_in(const fs::path& group, const char* limit, const char* usage, const char* cache) {
  const auto most = number_in(group / limit, ""), used = number_in(group / usage, "");
  if (!most || !used) return {};  // no limit: the file says "max"
  return std::max<int64_t>(0, *most - *used + number_in(group / "memory.stat", cache).value_or(0));
}

}  // namespace

int64_t available_memory(const fs::path& root) {
  int64_t free = number_in(root / "proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  std::ifstream groups(root / "proc/self/cgroup");  // lines "0::/path" (version 2) and "5:memory:/path" (version 1)
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const fs::path top = root / (unified ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    // A container often sees its own group as the top one, whatever its path says.
    for (fs::path path = fs::path(line.substr(second + 1)).relative_path();; path = path.parent_path()) {
      const auto left =
          unified ? left_in(top / path, "memory.max", "memory.current", "inactive_file")
                  : left_in(top / path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
      if (left) free = std::min(free, *left);
      if (path.empty()) break;
    }
  }
  return std::min(free, address_space_left());
}

int64_t address_space_left() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur >= rlim_t{INT64_MAX}) return INT64_MAX;
  int64_t pages = 0;  // of addresses, the first figure there
  std::ifstream("/proc/self/statm") >> pages;
  return std::max<int64_t>(0, int64_t(limit.rlim_cur) - pages * ::sysconf(_SC_PAGESIZE));
}

void restart_frugally(char** argv) {
  constexpr const char *kThreads = "OPENBLAS_NUM_THREADS", *kHeaps = "MALLOC_ARENA_MAX";
  if (address_space_left() == INT64_MAX || (std::getenv(kThreads) && std::getenv(kHeaps))) return;
  if (::setenv(kThreads, "1", 0) != 0 || ::setenv(kHeaps, "1", 0) != 0) return;
  ::execv("/proc/self/exe", argv);  // where that fails, it goes on as it is
}

}  // namespace octet
