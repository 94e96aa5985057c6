// octet bench says what it measured; --ops layers times the ops that the config's model has, and no others.
#include <set>

#include "cli/run.h"

namespace {

using namespace octet;

std::set<std::string> ops_of(const std::string& model, std::vector<std::string> changes = {}) {
  const Scratch folder;
  json config = json::parse(R"({"device": "cpu",
    "training": {"steps": 1, "global_batch_size": 1, "micro_batch_size": 1, "seq_len": 32},
    "precision": {"param_dtype": "fp32"}, "memory": {"plan_cache": ""}})");
  config["model"] = json::parse(model);
  folder.write("config.json", config.dump());
  std::vector<std::string> words{"bench", folder / "config.json", "--ops", "layers"};
  words.insert(words.begin() + 2, changes.begin(), changes.end());
  const Ran r = octet_says(words);
  expect_done(r);
  std::set<std::string> names;
  if (r.code != 0) return names;
  for (const json& op : json::parse(r.out)) {
    EXPECT_GT(op["us"], 0) << op;
    EXPECT_GT(op["megabytes"], 0) << op;
    names.insert(op["op"]);
  }
  return names;
}
void expect_ops(const std::set<std::string>& names, const std::vector<std::string>& there,
                const std::vector<std::string>& parts_of_none) {
  for (const std::string& name : there) EXPECT_TRUE(names.contains(name)) << name;
  for (const std::string& name : names)
    for (const std::string& part : parts_of_none) EXPECT_FALSE(has(name, part)) << name;
}

constexpr const char* kNeox = R"({"model_type": "gpt_neox", "vocab_size": 96, "hidden_size": 32,
  "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32})";
constexpr const char* kLlama = R"({"model_type": "llama", "vocab_size": 96, "hidden_size": 32,
  "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32})";

TEST(Bench, StageZeroShardsNothing) {
  for (const char* stage : {"0", "1"}) {
    const Ran r = octet_says({"bench", CONFIGS "/tiny_llama.json", "--ranks", "2", "--steps", "1", "--warmup", "0",
                              "training.seq_len=16", "training.micro_batch_size=1", "training.global_batch_size=2",
                              concat("parallel.zero_stage=", stage)});
    expect_done(r);
    EXPECT_EQ(json::parse(r.out)["shard_degree"], *stage == '0' ? 1 : 2) << r;
  }
}

TEST(BenchOps, NeoxHasLayernormGeluAndBiasGradients) {
  expect_ops(ops_of(kNeox),
             {"layernorm forward", "layernorm backward", "gelu forward", "gelu backward", "bias gradient, 32 columns",
              "bias gradient, 64 columns", "rope backward"},
             {"rmsnorm", "swiglu", "FP8"});
}
TEST(BenchOps, NeoxInFp8KeepsThePlainGradientForItsBiases) {
  expect_ops(ops_of(kNeox, {"fp8.enabled=true"}),
             {"layernorm forward, FP8 by rows", "gelu forward, FP8 both ways", "gelu backward, plain and FP8 both ways",
              "rope backward, plain and FP8 both ways"},
             {"rmsnorm", "swiglu"});
}
TEST(BenchOps, LlamaHasRmsnormAndSwiglu) {
  expect_ops(ops_of(kLlama, {"fp8.enabled=true"}),
             {"rmsnorm forward, FP8 by rows", "rmsnorm backward", "swiglu backward, FP8 both ways",
              "rope backward, FP8 both ways"},
             {"layernorm", "gelu", "bias gradient", "plain and FP8"});
}

}  // namespace
