// We are Llama-2: logits, loss, every gradient and 20 training steps of transformers, in fp32, bf16 and fp16, on one
// rank and on several under every stage of sharding.
#include <algorithm>
#include <filesystem>

#include "models/agreement.h"

namespace octet {
namespace {

// Every Llama of the golden folder; a name that ends in -sharded has the values of the one without.
std::vector<std::string> all_llamas() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden("")))
    if (const std::string name = entry.path().filename().string(); name.starts_with("llama-")) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}
std::string values_of(const std::string& model) {
  return std::filesystem::exists(golden(model + "/expected.safetensors")) ? model : model.substr(0, model.rfind('-'));
}

void expect_llama(const std::string& model, int ranks, const std::vector<std::string>& changes) {
  SCOPED_TRACE(model);
  const RunConfig config = parse_config(R"({"model": {"config": ")" + golden(model) + R"("}})", model, {});
  const size_t parameters = size_t(9 * config.model.num_layers + 2 + !config.model.tie_embeddings), steps = 20;
  expect_agreement(verify_golden(model, values_of(model), ranks, changes), 2 + parameters + 2 * steps + parameters);
}

// fp16: a loss scale that skips no step.
std::vector<std::string> stored_as(const char* dtype) {
  return {concat("precision.param_dtype=", dtype), "precision.loss_scale=128"};
}

class Golden : public testing::TestWithParam<const char*> {};  // dtype
INSTANTIATE_TEST_SUITE_P(Llama, Golden, testing::Values("fp32", "bf16", "fp16"),
                         [](const auto& dtype) { return std::string(dtype.param); });

TEST_P(Golden, EveryLlamaAgrees) {
  EXPECT_GE(all_llamas().size(), 4u);
  for (const std::string& model : all_llamas()) expect_llama(model, 1, stored_as(GetParam()));
}

TEST_P(Golden, EveryLlamaAgreesOnRanksThatShard) {
  for (const std::string& model : all_llamas())
    for (const auto& [ranks, more] : std::vector<std::pair<int, std::vector<std::string>>>{
             {2, {"parallel.zero_stage=1"}},
             {3, {"parallel.zero_stage=2", "training.micro_batch_size=2"}},
             {4, {"parallel.zero_stage=3", "memory.recompute_blocks=1"}},
             {4, {"parallel.zero_stage=3", "parallel.shard_degree=2", "training.micro_batch_size=1"}}}) {
      std::vector<std::string> changes = stored_as(GetParam());
      changes.insert(changes.end(), more.begin(), more.end());
      expect_llama(model, ranks, changes);
    }
}

}  // namespace
}  // namespace octet
