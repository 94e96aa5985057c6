#include "host/processors.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/rng.h"

namespace octet {

Processors my_processors() {
  Processors p;
  std::string boot;  // containers of one machine have names of their own, but the same boot
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  CPU_ZERO(&p.allowed);
  if (!boot.empty() && ::sched_getaffinity(0, sizeof p.allowed, &p.allowed) == 0) p.machine = hash(boot);
  return p;
}

int fair_share(const Processors& mine, std::span<const Processors> all) {
  double share = 0;
  bool shared = false;
  for (size_t i = 0; i < CPU_SETSIZE; ++i) {
    if (!CPU_ISSET(i, &mine.allowed)) continue;
    const auto users = std::ranges::count_if(
        all, [&](const Processors& p) { return p.machine == mine.machine && CPU_ISSET(i, &p.allowed); });
    share += 1 / double(users);
    shared |= users > 1;
  }
  constexpr double kRounding = 1e-6;  // of a sum of thirds
  return shared && mine.machine ? std::max(1, int(share + kRounding)) : 0;
}

int fair_share(Host& host) {
  std::vector<Processors> all(size_t(host.size()));
  const Processors mine = my_processors();
  host.all_gather(all.data(), &mine, sizeof mine);
  return fair_share(mine, all);
}

}  // namespace octet
