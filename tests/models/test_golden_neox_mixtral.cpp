// We are GPT-NeoX and Mixtral: logits, loss, every gradient and 20 training steps of transformers.
#include <gtest/gtest.h>

#include "golden.h"
#include "host/engine.h"

namespace octet {
namespace {

std::vector<VerifyLine> verify(const std::string& model, const std::string& dtype,
                               const std::vector<std::string>& more = {}, int ranks = 1) {
  std::vector<std::string> changes{"device=cpu", "memory.poison=true", "precision.param_dtype=" + dtype};
  changes.insert(changes.end(), more.begin(), more.end());
  const RunConfig config =
      parse_config(R"({"model": {"config": ")" + golden(model) + R"("}, "checkpoint": {"dir": ""}})", model, changes);
  const VerifyRequest request{golden(model), golden(model + "/expected.safetensors"),
                              golden(model + "/trajectory.json")};
  const Planner planner = [&](const RunConfig& c) { return plan::engine().plan(c, ranks, cpu::engine().target()); };
  std::vector<VerifyLine> lines;
  run_threads(ranks, [&](Host& host) {
    auto mine = cpu::engine().verify(config, host, planner, request);
    if (host.rank() == 0) lines = std::move(mine);
  });
  return lines;
}

void expect_agreement(const std::vector<VerifyLine>& lines, size_t least) {
  EXPECT_GE(lines.size(), least);
  for (const VerifyLine& l : lines)
    EXPECT_TRUE(l.ok) << l.what << ": absolute " << l.absolute << ", relative " << l.relative << ", metric " << l.metric
                      << "; tolerance " << l.tolerance << ' ' << l.measure;
}

class Neox : public testing::TestWithParam<const char*> {};
TEST_P(Neox, AgreesInFp32) { expect_agreement(verify(GetParam(), "fp32"), 2 + 28 + 40 + 26); }
TEST_P(Neox, AgreesInBf16) { expect_agreement(verify(GetParam(), "bf16"), 2 + 28 + 40 + 26); }
TEST_P(Neox, AgreesOnTwoRanksThatShardEverythingAndRecompute) {
  expect_agreement(verify(GetParam(), "fp32", {"parallel.zero_stage=3", "memory.recompute_blocks=2"}, 2),
                   2 + 28 + 40 + 26);
}
class Mixtral : public testing::TestWithParam<const char*> {};
TEST_P(Mixtral, AgreesInFp32) { expect_agreement(verify(GetParam(), "fp32"), 60); }
TEST_P(Mixtral, AgreesInBf16OnTheReferencesRoutes) { expect_agreement(verify(GetParam(), "bf16"), 40); }
TEST_P(Mixtral, AgreesOnRanksAndWithRecomputation) {
  for (const char* stage : {"0", "1", "3"})
    expect_agreement(
        verify(GetParam(), "fp32", {concat("parallel.zero_stage=", stage), "memory.recompute_blocks=1"}, 2), 60);
}
TEST_P(Mixtral, AgreesWithExpertsSpreadOverRanks) {
  for (const char* stage : {"1", "3"})
    expect_agreement(verify(GetParam(), "fp32",
                            {"parallel.expert_parallel=2", concat("parallel.zero_stage=", stage),
                             "parallel.expert_buffer=1", "memory.recompute_blocks=1"},
                            2),
                     60);
}
INSTANTIATE_TEST_SUITE_P(Golden, Mixtral, testing::Values("mixtral-8x2", "mixtral-4x1"));
INSTANTIATE_TEST_SUITE_P(Golden, Neox, testing::Values("neox-parallel", "neox-sequential"));

}  // namespace
}  // namespace octet
