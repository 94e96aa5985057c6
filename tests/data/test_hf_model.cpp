// Hugging Face's files and our parameters: names, shapes, tied heads, padded vocabularies, experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "data/hf_model.h"
#include "data/safetensors_writer.h"
#include "data/scratch.h"
#include "golden.h"

namespace octet {
namespace {

// The parameters of a model file under our names, which are its names.
std::vector<NamedShape> parameters_of(const SafetensorsModel& model) {
  std::vector<NamedShape> list;
  model.for_each([&](const SafetensorsModel::Place& p) {
    const auto& s = p.entry->shape;
    list.push_back({p.entry->name, s.size() == 1 ? Shape{s[0]} : Shape{s[0], s[1]}});
  });
  return list;
}

// A model file of fp32 tensors, each filled with 0, 1, 2, ….
std::filesystem::path model_file(const Scratch& folder, const std::vector<NamedShape>& tensors) {
  std::vector<StoredTensor> stored;
  for (const auto& [name, shape] : tensors) stored.push_back({name, DType::f32, stored_shape({name, shape}, {})});
  SafetensorsWriter writer(folder / "model.safetensors", stored);
  for (const auto& [name, shape] : tensors) {
    std::vector<float> values(static_cast<size_t>(shape.numel()));
    std::iota(values.begin(), values.end(), 0.f);
    writer.write(name, 0, std::span<const float>(values));
  }
  writer.close();
  return folder / "model.safetensors";
}

const std::vector<NamedShape> kTiny{{"model.embed_tokens.weight", {5, 2}}, {"model.norm.weight", {2}}};

std::string refusal(const Scratch& folder, const std::vector<NamedShape>& files,
                    const std::vector<NamedShape>& expected, HfLayout layout = {}) {
  const SafetensorsModel model(model_file(folder, files));
  return error_of<InputError>([&] { check_names(expected, model, layout); });
}

TEST(HfModel, GoldenModelsHaveTheirOwnNames) {
  for (const char* name : {"llama-mha", "llama-gqa-sharded", "neox-parallel", "mixtral-8x2"}) {
    const SafetensorsModel model(golden(name));
    EXPECT_NO_THROW(check_names(parameters_of(model), model, {.vocab_size = 128})) << name;
  }
  const SafetensorsModel tied(golden("llama-tied"));
  auto expected = parameters_of(tied);
  expected.push_back({"lm_head.weight", {128, 32}});  // whether a tied head is listed or not
  EXPECT_NO_THROW(check_names(expected, tied, {.tied_head = true}));
  EXPECT_PRED2(has, error_of<InputError>([&] { check_names(expected, tied, {}); }), "set tie_word_embeddings to true");
}

TEST(HfModel, AReportNamesTheFirstOfEachKindAndCountsAll) {
  const SafetensorsModel model(golden("llama-gqa"));
  auto expected = parameters_of(model);
  std::erase_if(expected, [](const NamedShape& p) { return p.name.find("layers.1.") != std::string::npos; });
  for (auto& p : expected)
    if (p.name == "model.norm.weight") p.shape = {64};
  expected.push_back({"model.layers.7.mlp.up_proj.weight", {80, 32}});
  const std::string said = error_of<InputError>([&] { check_names(expected, model, {}); });
  EXPECT_PRED2(has, said, golden("llama-gqa"));
  EXPECT_PRED2(has, said, "missing, 1: model.layers.7.mlp.up_proj.weight\n");
  EXPECT_PRED2(has, said, "unexpected, 9: model.layers.1.input_layernorm.weight [32], ");
  EXPECT_PRED2(has, said, ", ...\n");
  EXPECT_PRED2(has, said, "of another shape, 1: model.norm.weight [32] instead of [64]\n");
  EXPECT_LT(std::ranges::count(said, '\n'), 6);
}

TEST(HfModel, BuffersOfOlderVersionsAreNoParameters) {
  const Scratch folder;
  auto files = kTiny;
  files.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {8}});
  files.push_back({"gpt_neox.layers.0.attention.bias", {1}});
  files.push_back({"gpt_neox.layers.0.attention.masked_bias", {1}});
  const SafetensorsModel model(model_file(folder, files));
  EXPECT_NO_THROW(check_names(kTiny, model, {}));
  EXPECT_FALSE(is_no_parameter("gpt_neox.layers.0.attention.dense.bias"));
  EXPECT_FALSE(is_no_parameter("gpt_neox.layers.0.attention.query_key_value.bias"));
  EXPECT_FALSE(is_no_parameter("model.layers.0.self_attn.q_proj.bias"));  // a bias that octet would ignore is an error
}

TEST(HfModel, ATiedHeadIsAbsentOrTheEmbedding) {
  const Scratch folder;
  const HfLayout tied{.tied_head = true};
  auto files = kTiny;
  files.push_back({"lm_head.weight", {5, 2}});
  const SafetensorsModel copy(model_file(folder, files));
  EXPECT_NO_THROW(check_names(kTiny, copy, tied));
  EXPECT_PRED2(has, error_of<InputError>([&] { check_names(kTiny, copy, {}); }),
               "unexpected, 1: lm_head.weight [5, 2]");
  files.back().shape = {2, 5};
  EXPECT_PRED2(has, refusal(folder, files, kTiny, tied), "'lm_head.weight' differs from 'model.embed_tokens.weight'");
  const SafetensorsModel other(golden("llama-gqa"));
  auto expected = parameters_of(other);
  EXPECT_PRED2(has, error_of<InputError>([&] { check_names(expected, other, tied); }),
               "set tie_word_embeddings to false");
}

TEST(HfModel, APaddedVocabularyIsReadWithZerosAndWrittenWithoutThem) {
  const Scratch folder;
  const HfLayout layout{.vocab_size = 5};
  const NamedShape ours{"model.embed_tokens.weight", {8, 2}};
  const SafetensorsModel model(model_file(folder, kTiny));
  EXPECT_NO_THROW(check_names({ours, kTiny[1]}, model, layout));
  EXPECT_EQ(stored_shape(ours, layout), (std::vector<int64_t>{5, 2}));
  EXPECT_EQ(stored_shape(kTiny[1], layout), (std::vector<int64_t>{2}));
  std::vector<double> rows(8, -1);
  read_parameter(model, ours, 6, 8, rows.data());  // elements 6 to 14 of 16, of which the file holds 10
  EXPECT_EQ(rows, (std::vector<double>{6, 7, 8, 9, 0, 0, 0, 0}));
  std::vector<float> beyond(4, -1);
  read_parameter(model, ours, 12, 4, beyond.data());
  EXPECT_EQ(beyond, std::vector<float>(4, 0));
  EXPECT_EQ(stored_count(ours, layout, 0, 16), 10);
  EXPECT_EQ(stored_count(ours, layout, 6, 8), 4);
  EXPECT_EQ(stored_count(ours, layout, 12, 4), 0);
  EXPECT_EQ(stored_count(ours, {}, 12, 4), 4);
  EXPECT_PRED2(has, refusal(folder, kTiny, {ours, kTiny[1]}), "model.embed_tokens.weight [5, 2] instead of [8, 2]");
  float norm[4];
  EXPECT_THROW(read_parameter(model, {"model.norm.weight", {4}}, 0, 4, norm), Error);  // no vocabulary: never padded
}

// Sentence: every parameter of every golden model has its gradient in the expected file, and every gradient there is
// covered by parameters exactly once.
TEST(HfModel, ExpectedGradientsAreCoveredExactlyOnce) {
  for (const char* name : {"llama-mha", "llama-tied", "neox-sequential", "mixtral-8x2", "mixtral-4x1"}) {
    SCOPED_TRACE(name);
    const SafetensorsModel model(golden(name));
    const SafetensorsFile expected(golden(std::string(name) + "/expected.safetensors"));
    std::map<std::string, std::map<int64_t, int64_t>> covered;  // gradient -> first -> end
    for (const auto& [parameter, shape] : parameters_of(model)) {
      const Slice s = find_expected_gradient(parameter, shape.numel());
      EXPECT_TRUE(covered[s.name].emplace(s.first, s.first + s.count).second) << parameter;
    }
    for (const auto& e : expected.entries()) {
      if (!e.name.starts_with("grad.")) continue;
      int64_t end = 0;
      for (const auto& [first, next] : covered[e.name]) EXPECT_EQ(std::exchange(end, next), first) << e.name;
      EXPECT_EQ(end, e.numel()) << e.name;
      covered.erase(e.name);
    }
    EXPECT_TRUE(covered.empty()) << covered.begin()->first;
  }
}

TEST(HfModel, ExpertsLieGateFirstExpertByExpert) {
  const int64_t F = 48, C = 32, n = F * C;
  const std::string ours = "model.layers.1.block_sparse_moe.experts.10.", theirs = "model.layers.1.mlp.experts.";
  const auto at = [&](const char* matrix) { return transformers_slice(ours + matrix, n); };
  EXPECT_EQ(at("w1.weight").name, theirs + "gate_up_proj");
  EXPECT_EQ(at("w1.weight").first, 20 * n);
  EXPECT_EQ(at("w3.weight").first, 21 * n);
  EXPECT_EQ(at("w2.weight").name, theirs + "down_proj");
  EXPECT_EQ(at("w2.weight").first, 10 * n);
  EXPECT_EQ(at("w2.weight").count, n);
  EXPECT_EQ(transformers_slice("model.layers.1.block_sparse_moe.gate.weight", 4).name,
            "model.layers.1.mlp.gate.weight");
  EXPECT_EQ(find_expected_gradient("embed_out.weight", 4).name, "grad.lm_head.weight");
  EXPECT_THROW(transformers_slice(ours + "w4.weight", n), Error);
}

}  // namespace
}  // namespace octet
