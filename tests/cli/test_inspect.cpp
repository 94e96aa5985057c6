// octet inspect tells what is in a checkpoint, a model, weights and token files, and finds what was damaged.
#include <algorithm>
#include <cmath>

#include "cli/tensors.h"
#include "cli/tiny_run.h"
#include "golden.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

json inspected(std::vector<std::string> words, int code = 0) {
  words.insert(words.begin(), "inspect");
  words.push_back("--json");
  const Ran r = octet_says(words);
  EXPECT_EQ(r.code, code) << r;
  return json::parse(r.out, nullptr, /*allow_exceptions=*/false);
}

void change_byte(const fs::path& file, size_t from_end) {
  std::string bytes = read_file(file);
  bytes[bytes.size() - from_end] ^= 1;
  write_file(file, bytes);
}

}  // namespace

TEST(Inspect, ACheckpointsStateConfigAndChecksums) {
  const TinyRun tiny;
  expect_done(tiny.train({"--ranks", "2", "parallel.zero_stage=3"}));
  const std::string step = tiny.path("run") + "/step-00000010";
  expect_done(octet_says({"inspect", tiny.path("run")}),
              {"checkpoint of octet", "step", "10: 40 sequences, 1,280 tokens", "2 ranks", "parallel.zero_stage = 3",
               "llama: 2 layers, width 32", "model.safetensors", "agree", "5, 10"});
  const json r = inspected({step});
  EXPECT_EQ(r["kind"], "checkpoint");
  EXPECT_EQ(r["step"], 10);
  EXPECT_EQ(r["samples"], 40);
  EXPECT_EQ(r["tokens"], 40 * 32);
  EXPECT_EQ(r["config"]["training"]["seq_len"], 32);
  EXPECT_EQ(r["changed"]["parallel.zero_stage"], "3");
  for (const char* same : {"optimizer.beta2", "optimizer.clip", "precision.loss_scale", "parallel.watchdog_seconds"})
    EXPECT_FALSE(r["changed"].contains(same)) << same;
  EXPECT_EQ(r["files"]["model.safetensors"], fs::file_size(step + "/model.safetensors"));
  EXPECT_EQ(r["tokenizer"], json::array({"tokenizer.model"}));
  // Every tensor, twice its moments, and the small files.
  const int64_t tensors = int64_t(tensors_in(step + "/model.safetensors").size());
  EXPECT_EQ(r["checksums"]["compared"], 3 * tensors + 3);  // state.json, config.json, tokenizer.model
  EXPECT_EQ(r["ok"], true);
  EXPECT_EQ(inspected({tiny.path("run")})["steps"], json::array({5, 10}));
}

TEST(Inspect, AChangedBitOfACheckpointIsFound) {
  const TinyRun tiny;
  expect_done(tiny.train({"training.steps=3"}));
  const fs::path step = tiny.path("run") + "/step-00000003";
  const auto wrong = [&] { return inspected({step.string()}, 1)["checksums"]["different"]; };
  const SafetensorsFile weights(step / "model.safetensors"), moments(step / "optimizer.safetensors");
  const std::string last = weights.entries().back().name, last_moment = moments.entries().back().name;
  change_byte(step / "model.safetensors", 1);
  EXPECT_EQ(wrong(), json::array({"model.safetensors: " + last}));
  const Ran r = octet_says({"inspect", step});
  EXPECT_EQ(r.code, 1) << r;
  EXPECT_TRUE(has(r.out, "DIFFER") && has(r.out, last)) << r;
  expect_done(octet_says({"inspect", step, "--quick"}), {"not compared"});
  change_byte(step / "model.safetensors", 1);
  change_byte(step / "optimizer.safetensors", 1);
  EXPECT_EQ(wrong(), json::array({"optimizer.safetensors: " + last_moment}));
  change_byte(step / "optimizer.safetensors", 1);
  expect_done(octet_says({"inspect", step}), {"agree"});
  change_byte(step / "tokenizer.model", 1);
  EXPECT_EQ(wrong(), json::array({"tokenizer.model"}));
  for (const char* file : {"tokenizer.model", "optimizer.safetensors"}) fs::remove(step / file);
  EXPECT_EQ(wrong(), json::array({"optimizer.safetensors is missing", "tokenizer.model is missing"}));
}

TEST(Inspect, TwoElementsThatChangePlacesAreFound) {
  const TinyRun tiny;
  expect_done(tiny.train({"training.steps=3"}));
  const fs::path file = tiny.path("run") + "/step-00000003/model.safetensors";
  const size_t at = SafetensorsFile(file).at("model.embed_tokens.weight").offset;
  std::string bytes = read_file(file);
  ASSERT_NE(bytes.substr(at, 4), bytes.substr(at + 4, 4));
  std::swap_ranges(bytes.begin() + ptrdiff_t(at), bytes.begin() + ptrdiff_t(at + 4), bytes.begin() + ptrdiff_t(at + 4));
  write_file(file, bytes);
  EXPECT_EQ(inspected({file.parent_path().string()}, 1)["checksums"]["different"].size(), 1u);
}

TEST(Inspect, AnImportedModelAndAFolderOfTransformers) {
  const Scratch folder;
  expect_done(octet_says({"import", golden("mixtral-8x2"), "--out", folder / "start"}));
  const json start = inspected({folder / "start"}), model = inspected({golden("mixtral-8x2")});
  EXPECT_EQ(start["kind"], "checkpoint");
  EXPECT_EQ(start["step"], 0);
  EXPECT_EQ(start["checksums"]["different"], json::array());
  EXPECT_EQ(model["kind"], "model");
  EXPECT_EQ(model["parameters"], start["parameters"]);
  EXPECT_EQ(model["tensors"], start["tensors"]);
  expect_done(octet_says({"inspect", golden("mixtral-8x2")}),
              {"model of transformers", "mixtral: 2 layers, width 32, 2 heads (1 of keys)", "8 experts, 2 a token"});
  expect_done(octet_says({"inspect", golden("llama-gqa-sharded"), "--tensors"}),
              {"model-00001-of-00004.safetensors", "model.layers.1.mlp.down_proj.weight"});
  copy_folder(golden("llama-gqa"), folder / "other");
  json config = read_json((folder / "other/config.json").string());
  config["model_type"] = "gpt2";
  write_file(folder / "other/config.json", config.dump());
  expect_done(octet_says({"inspect", folder / "other"}), {"not supported", "gpt2", "parameters"});
}

TEST(Inspect, SafetensorsNamesShapesAndTypes) {
  const Scratch folder;
  write_tensors(folder / "a.safetensors", {{"w", {2, 3}, {1, 2, 3, 4, 5, 6}}, {"b", {3}, {1, 2, 3}}}, DType::bf16);
  const json r = inspected({folder / "a.safetensors"});
  EXPECT_EQ(r["parameters"], 9);
  EXPECT_EQ(r["elements_by_dtype"]["BF16"], 9);
  const json expected{{{"name", "b"}, {"dtype", "BF16"}, {"shape", {3}}, {"bytes", 6}},
                      {{"name", "w"}, {"dtype", "BF16"}, {"shape", {2, 3}}, {"bytes", 12}}};
  EXPECT_EQ(r["tensors"], expected);
  expect_done(octet_says({"inspect", folder / "a.safetensors"}), {"9 in 2 tensors: 9 BF16", "w", "[2, 3]"});
}

TEST(Inspect, ATokenFileAndItsFirstDocuments) {
  const TinyRun tiny;
  const Ran r = octet_says({"inspect", tiny.path("train.tokens")});  // tokenizer.model lies beside it
  std::string text = read_file(small_text());
  while (text.starts_with('\n')) text.erase(0, 1);
  expect_done(r, {"token file", "vocabulary", "400", "every token and index entry is valid", text.substr(0, 20)});
  const json j = inspected({tiny.path("train.tokens"), "--documents", "1"});
  const TokenFile file(tiny.path("train.tokens"));
  EXPECT_EQ(j["tokens"], file.tokens());
  EXPECT_EQ(j["documents"], file.documents());
  EXPECT_EQ(j["source_bytes"], file.header().source_bytes);
  EXPECT_EQ(j["bos_id"], 1);
  ASSERT_EQ(j["first"].size(), 1u);
  EXPECT_EQ(j["first"][0]["ids"][0], 1);
  EXPECT_TRUE(text.starts_with(j["first"][0]["text"].get<std::string>().substr(0, 100)));

  const Scratch alone;  // without a tokenizer: ids
  fs::copy_file(tiny.path("train.tokens"), alone / "t.tokens");
  expect_done(octet_says({"inspect", alone / "t.tokens"}), {"give their tokenizer with --tokenizer", "[1,"});
  expect_done(octet_says({"inspect", alone / "t.tokens", "--tokenizer", tiny.path("tokenizer.model")}),
              {text.substr(0, 20)});
  expect_done(octet_says({"tokenizer", "--input", small_text(), "--vocab-size", "390", "--out", alone / "b.model"}));
  expect_refused(octet_says({"inspect", alone / "t.tokens", "--tokenizer", alone / "b.model"}),
                 {"b.model", "not the tokenizer that made"});
  expect_done(octet_says({"inspect", alone / "b.model"}), {"sentencepiece", "390", "bos 1, eos 2"});
}

TEST(Inspect, DifferencesOfTensorsAreExact) {
  const Scratch folder;
  write_tensors(folder / "a.safetensors", {{"w", {2, 2}, {3, 0, 0, 4}}, {"same", {2}, {1, 2}}, {"gone", {1}, {1}}});
  write_tensors(folder / "b.safetensors", {{"w", {2, 2}, {3, 5, 0, -8}}, {"same", {2}, {1, 2}}, {"new", {1}, {1}}});
  const json r = inspected({"--diff", folder / "a.safetensors", folder / "b.safetensors"});
  EXPECT_EQ(r["only_in_a"], json::array({"gone"}));
  EXPECT_EQ(r["only_in_b"], json::array({"new"}));
  EXPECT_EQ(r["equal"], false);
  const json& same = r["tensors"][0];
  const json& w = r["tensors"][1];
  EXPECT_EQ(same["equal"], true);
  EXPECT_EQ(w["norm_a"], 5.0);              // 3 4
  EXPECT_EQ(w["norm_b"], std::sqrt(98.0));  // 3 5 -8
  EXPECT_EQ(w["norm_difference"], 13.0);    // 5 -12
  EXPECT_EQ(w["relative"], 2.6);
  EXPECT_EQ(w["largest_change"], 12.0);
  EXPECT_EQ(w["at"], json::array({1, 1}));
  expect_done(octet_says({"inspect", "--diff", folder / "a.safetensors", folder / "a.safetensors"}),
              {"3 of 3 tensors are equal", "A and B are equal"});
}

// For programs null, which JSON has; for people by name.
TEST(Inspect, DifferencesThatAreNotFiniteAreNull) {
  const Scratch folder;
  write_tensors(folder / "a.safetensors", {{"broken", {2}, {3, 4}}, {"new", {1}, {0}}});
  write_tensors(folder / "b.safetensors", {{"broken", {2}, {3, NAN}}, {"new", {1}, {5}}});
  const json r = inspected({"--diff", folder / "a.safetensors", folder / "b.safetensors"});
  const json &broken = r["tensors"][0], &grown = r["tensors"][1];
  EXPECT_EQ(broken["norm_a"], 5.0);
  for (const char* key : {"norm_b", "norm_difference", "relative", "largest_change"})
    EXPECT_TRUE(broken[key].is_null()) << key << ": " << broken[key];
  EXPECT_EQ(broken["at"], json::array({1}));
  EXPECT_TRUE(grown["relative"].is_null()) << grown["relative"];
  EXPECT_TRUE(r["norm_b"].is_null() && r["norm_difference"].is_null()) << r;
  expect_done(octet_says({"inspect", "--diff", folder / "a.safetensors", folder / "b.safetensors"}),
              {"5        nan        nan       nan       nan [1]", "5          5       inf  5.00e+00 [0]",
               "|A| 5, |B| nan, |B-A| nan"});
}

TEST(Inspect, DifferencesOfTwoCheckpoints) {
  const TinyRun tiny;
  expect_done(tiny.train());
  const std::string run = tiny.path("run");
  const json r = inspected({"--diff", run + "/step-00000005", run + "/step-00000010"});
  std::map<std::string, json> config;
  for (const json& c : r["config"]) config[c["key"]] = c;
  EXPECT_EQ(config["step"]["a"], "5");
  EXPECT_EQ(config["step"]["b"], "10");
  EXPECT_FALSE(config.contains("config.training.seq_len"));
  EXPECT_EQ(r["tensors"].size(), tensors_in(run + "/step-00000005/model.safetensors").size());
  for (const json& t : r["tensors"]) EXPECT_GT(t["norm_difference"].get<double>(), 0) << t;
  expect_done(octet_says({"inspect", "--diff", run + "/step-00000005", run + "/step-00000010"}),
              {"step", "5", "10", "model.norm.weight", "|B-A|"});
  expect_done(octet_says({"inspect", "--diff", golden("llama-gqa"), golden("llama-gqa-sharded")}),
              {"A and B are equal"});
  const json other = inspected({"--diff", golden("llama-gqa"), golden("llama-tied")});
  EXPECT_EQ(other["only_in_a"], json::array({"lm_head.weight"}));
  EXPECT_EQ(inspected({"--diff", golden("llama-mha"), golden("llama-gqa")})["other_shape"].size(),
            4u);  // k, v of 2 layers
}

}  // namespace octet
