// Plans of GPT-NeoX and Mixtral: parameters as published, FLOPs by the closed formula of what a token uses.
#include <gtest/gtest.h>

#include "cli/ranks.h"

namespace octet {
namespace {

const Target kHopper{.cuda = true, .compute_capability = 90, .multiprocessors = 132};

double flops_of(const RunConfig& c, const PlanResult& plan) {  // of a token
  double sum = 0;
  for (const Work& w : plan.work) sum += w.flops;
  return sum / double(tokens_per_step(c));
}
RunConfig config(const std::string& name, const std::vector<std::string>& changes = {}) {
  return load_config(std::string(CONFIGS) + "/" + name + ".json", changes);
}

TEST(PlanArchitectures, ParametersAreThePublishedOnes) {
  for (const auto& [name, parameters] : {std::pair<const char*, int64_t>{"neox_160m", 162322944},
                                         {"neox_1b4", 1414647808},
                                         {"neox_6b9", 6857302016},
                                         {"neox_20b", 20554567680},
                                         {"mixtral_8x7b", 46702792704},
                                         {"mixtral_8x22b", 140620634112}})
    EXPECT_EQ(plan::engine().plan(config(name), 1, kHopper).parameters, parameters) << name;
}

TEST(PlanArchitectures, NeoxFlops) {
  const RunConfig c = config("neox_1b4");
  const double C = 2048, F = 8192, L = 24, V = 50304, T = 2048;
  EXPECT_EQ(flops_of(c, plan::engine().plan(c, 1, kHopper)), 6 * (L * (4 * C * C + 2 * C * F) + V * C) + 6 * L * C * T);
}

TEST(PlanArchitectures, MixtralFlopsAreThoseOfTheExpertsThatATokenVisits) {
  const RunConfig c = config("mixtral_8x7b", {"memory.recompute_blocks=0"});
  const double C = 4096, F = 14336, L = 32, V = 32000, T = 4096, E = 8, K = 2, kv = 1024;
  const double used = L * (2 * C * C + 2 * C * kv + E * C + K * 3 * C * F) + V * C;
  EXPECT_EQ(flops_of(c, plan::engine().plan(c, 1, kHopper)), 6 * used + 6 * L * C * T);
}

}  // namespace
}  // namespace octet
