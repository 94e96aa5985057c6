#pragma once
// A model of tests/golden under octet verify's comparison, on some ranks of the cpu engine.
#include <gtest/gtest.h>
#include <omp.h>

#include <filesystem>

#include "cli/ranks.h"
#include "golden.h"
#include "ranks.h"

namespace octet {

// expected: the folder whose values are compared; a sharded copy of a model shares them.
inline std::vector<VerifyLine> verify_golden(const std::string& model, const std::string& expected, int ranks,
                                             const std::vector<std::string>& changes) {
  std::vector<std::string> all{"device=cpu", "memory.poison=true"};
  all.insert(all.end(), changes.begin(), changes.end());
  const RunConfig config =
      parse_config(R"({"model": {"config": ")" + golden(model) + R"("}, "checkpoint": {"dir": ""}})", model, all);
  const std::string trajectory = golden(expected + "/trajectory.json");
  const VerifyRequest request{golden(model), golden(expected + "/expected.safetensors"),
                              std::filesystem::exists(trajectory) ? trajectory : ""};
  const Planner planner = planner_for(target_of(cpu::engine(), config), ranks);
  std::vector<VerifyLine> lines;
  run_ranks(ranks, [&](Host& host) {
    if (ranks > 1) omp_set_num_threads(1);  // each rank is a thread already
    auto mine = cpu::engine().verify(config, host, planner, request);
    if (host.rank() == 0) lines = std::move(mine);
  });
  return lines;
}

inline void expect_agreement(const std::vector<VerifyLine>& lines, size_t count) {
  EXPECT_EQ(lines.size(), count);
  for (const VerifyLine& l : lines)
    EXPECT_TRUE(l.ok) << l.what << ": absolute " << l.absolute << ", relative " << l.relative << ", metric " << l.metric
                      << "; tolerance " << l.tolerance << ' ' << l.measure;
}

}  // namespace octet
