// octet verify proves this program equal to transformers, and notices when it is not.
#include <algorithm>
#include <cstring>
#include <functional>

#include "cli/tensors.h"
#include "golden.h"

namespace octet {
namespace {

const char* const kModels[] = {"llama-mha", "llama-gqa", "llama-tied", "neox-parallel", "neox-sequential"};

std::vector<std::string> verify(const std::string& model, std::vector<std::string> more = {}) {
  std::vector<std::string> words{OCTET_BINARY, "verify", golden(model), "--device", "cpu"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::filesystem::path copy_of(const std::string& model, const Scratch& folder) {
  std::filesystem::copy(golden(model), folder / "model", std::filesystem::copy_options::recursive);
  return folder / "model";
}

void overwrite(const std::filesystem::path& file, size_t from_end, const std::string& bytes) {
  std::string contents = read_file(file);
  contents.replace(contents.size() - from_end, bytes.size(), bytes);
  write_file(file, contents);
}

// The tensors of a file under the names that `name` gives them, "" for none, multiplied by `factor` (fp32 ones).
void rewrite(const std::filesystem::path& from, const std::filesystem::path& to,
             const std::function<std::string(const std::string&)>& name, float factor = 1) {
  json header = json::object();
  std::string data;
  for (const auto& [old, tensor] : tensors_in(from)) {
    const std::string now = name(old);
    if (now.empty()) continue;
    std::string bytes = tensor.bytes;
    for (size_t i = 0; tensor.dtype == "F32" && i < bytes.size(); i += 4) {
      float x;
      std::memcpy(&x, bytes.data() + i, 4);
      x *= factor;
      std::memcpy(bytes.data() + i, &x, 4);
    }
    header[now] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  write_file(to, std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
}
std::function<std::string(const std::string&)> only(const std::vector<std::string>& kept) {
  return [=](const std::string& name) { return std::ranges::count(kept, name) ? name : ""; };
}

}  // namespace

TEST(Verify, EveryModelAgrees) {
  for (const std::string model : kModels) {
    expect_done(run(verify(model)), {"logits", "loss", "step 19 loss", "0 beyond"});
    expect_done(run(verify(model, {"--dtype", "bf16"})), {"step 19 norm", "0 beyond"});
  }
}

TEST(Verify, MixtralAgrees) {
  for (const std::string model : {"mixtral-8x2", "mixtral-4x1"}) {
    expect_done(run(verify(model)), {"router logits", "aux loss", "step 19 aux loss", "0 beyond"});
    expect_done(run(verify(model, {"--dtype", "bf16"})), {"router logits", "aux loss", "0 beyond"});
  }
  const std::string of_llama = golden("llama-gqa/expected.safetensors");
  expect_refused(octet_says({"verify", golden("mixtral-8x2"), of_llama, "--device", "cpu"}),
                 {"no tensor 'grad.model.layers.0.mlp.gate.weight'"});
  expect_refused(octet_says({"verify", golden("mixtral-8x2"), of_llama, "--device", "cpu", "--dtype", "bf16"}),
                 {"no router_logits", "--dtype fp32"});
}

TEST(Verify, WhatTheFileHoldsIsCompared) {
  const Scratch folder;
  const std::string file = folder / "some.safetensors";
  const auto verify_with = [&](const std::string& model, const std::vector<std::string>& kept,
                               std::vector<std::string> more = {}) {
    rewrite(golden(model + "/expected.safetensors"), file, only(kept));
    more.insert(more.begin(), {"verify", golden(model), file, "--device", "cpu"});
    return octet_says(more);
  };
  for (const std::string model : {"llama-gqa", "neox-parallel", "mixtral-8x2"}) {
    const Ran r = verify_with(model, {"input_ids", "logits"});
    expect_done(r, {"loss: not in the file", "gradients: not in the file", "1 values compared, 0 beyond"});
    expect_done(verify_with(model, {"input_ids", "logits", "labels", "loss"}),
                {"gradients: not in the file", "2 values compared, 0 beyond"});
  }
  expect_done(verify_with("llama-gqa", {"input_ids", "logits"}, {"--dtype", "bf16"}), {"1 values compared, 0 beyond"});
  const Ran as_json = verify_with("mixtral-8x2", {"input_ids", "logits", "router_logits"}, {"--json"});
  expect_done(as_json);
  EXPECT_EQ(json::parse(as_json.out)["absent"], json({"loss", "gradients"}));
  EXPECT_EQ(json::parse(as_json.out)["lines"].size(), 2u);
  expect_refused(verify_with("llama-gqa", {"input_ids", "labels", "loss"}), {"some.safetensors", "'logits'"});
  expect_refused(verify_with("llama-gqa", {"logits"}), {"'input_ids'"});
  expect_refused(verify_with("llama-gqa", {"input_ids", "logits", "loss"}), {"a loss but no labels", "-100"});
  expect_refused(verify_with("llama-gqa", {"input_ids", "logits", "grad.lm_head.weight"}),
                 {"gradients but no labels", "-100"});
  expect_refused(verify_with("llama-gqa", {"input_ids", "logits", "labels", "grad.lm_head.weight"}),
                 {"no tensor 'grad.model."});
  // A wrong logit is found without the rest.
  rewrite(golden("llama-gqa/expected.safetensors"), file, only({"input_ids", "logits"}), 1.001F);
  EXPECT_EQ(octet_says({"verify", golden("llama-gqa"), file, "--device", "cpu"}).code, 1);
}

TEST(Verify, GradientsUnderTheNamesOfTransformers4) {
  const Scratch folder;
  const std::string file = folder / "four.safetensors";
  rewrite(golden("neox-parallel/expected.safetensors"), file,
          [](const std::string& name) { return name == "grad.lm_head.weight" ? "grad.embed_out.weight" : name; });
  expect_done(octet_says({"verify", golden("neox-parallel"), file, "--device", "cpu"}),
              {"grad embed_out.weight", "0 beyond"});
}

// Rounding is a part of what is rounded: a head of 4096 times the weights errs by 4096 times as much.
TEST(Verify, LargeLogitsMayErrByMore) {
  const Scratch folder;
  const auto model = copy_of("llama-gqa", folder);
  const std::string file = folder / "large.safetensors", weights = model / "model.safetensors";
  rewrite(golden("llama-gqa/expected.safetensors"), file, only({"input_ids", "logits"}), 4096);
  EXPECT_EQ(octet_says({"verify", model, file, "--device", "cpu"}).code, 1);
  rewrite(weights, weights, only({"lm_head.weight"}), 4096);
  const auto rest = [](const std::string& name) { return name == "lm_head.weight" ? "" : name; };
  rewrite(golden("llama-gqa/model.safetensors"), model / "rest.safetensors", rest);
  json map = json::object();
  for (const auto& [name, tensor] : tensors_in(golden("llama-gqa")))
    map[name] = name == "lm_head.weight" ? "head.safetensors" : "rest.safetensors";
  std::filesystem::rename(weights, model / "head.safetensors");
  write_file(model / "model.safetensors.index.json", json{{"weight_map", map}}.dump());
  expect_done(octet_says({"verify", model, file, "--device", "cpu"}), {"logits", "0 beyond"});
}

TEST(Verify, NoNoiseOnRouters) {
  const Scratch folder;
  const auto model = copy_of("mixtral-8x2", folder);
  json config = json::parse(read_file(model / "config.json"));
  config["router_jitter_noise"] = 0.1;
  write_file(model / "config.json", config.dump());
  expect_done(octet_says({"verify", model, "--device", "cpu"}), {"step 19 aux loss", "0 beyond"});
}

TEST(Verify, ReadsShardedFilesAndNamedExpectedValues) {
  const Ran r = octet_says({"verify", golden("llama-gqa-sharded"), golden("llama-gqa/expected.safetensors"),
                            "--trajectory", golden("llama-gqa/trajectory.json"), "--device", "cpu", "--json"});
  expect_done(r);
  const json report = json::parse(r.out);
  EXPECT_TRUE(report["ok"].get<bool>());
  EXPECT_GT(report["lines"].size(), 40u);
}

TEST(Verify, AgreesOnRanksAndWithOverrides) {
  for (const std::string stage : {"0", "1", "2", "3"})
    expect_done(run(verify("llama-gqa", {"--ranks", "2", "parallel.zero_stage=" + stage, "memory.poison=true",
                                         "memory.recompute_blocks=1"})),
                {"0 beyond"});
}

TEST(Verify, AgreesUnderMpirun) {
  for (const auto& [ranks, changes] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"2", {"parallel.zero_stage=3"}},
           {"3", {"parallel.zero_stage=1"}},
           {"4", {"parallel.zero_stage=3", "parallel.shard_degree=2"}}}) {
    std::vector<std::string> words{"mpirun", "-np", ranks, "--oversubscribe"};
    for (const std::string& word : verify("llama-tied", changes)) words.push_back(word);
    const Ran r = run(words);
    if (r.code == 127) GTEST_SKIP() << "no mpirun";
    if (has(r.err, "built without MPI")) GTEST_SKIP() << "built without MPI";
    expect_done(r, {"0 beyond"});
  }
}

TEST(Verify, AChangedWeightIsBeyondTolerance) {
  const Scratch folder;
  const auto model = copy_of("llama-gqa", folder);
  overwrite(model / "model.safetensors", 4, std::string("\x00\x00\x80\x3f", 4));  // the last weight becomes 1
  const Ran r = octet_says({"verify", model, "--device", "cpu"});
  EXPECT_EQ(r.code, 1) << r;
  EXPECT_TRUE(has(r.out, "FAIL")) << r;
  const Ran as_json = octet_says({"verify", model, "--device", "cpu", "--json"});
  EXPECT_EQ(as_json.code, 1) << as_json;
  EXPECT_FALSE(json::parse(as_json.out)["ok"].get<bool>());
}

TEST(Verify, RefusesBadFolders) {
  expect_refused(octet_says({"verify", "no/such/folder"}), {"no/such/folder", "config.json"});
  const Scratch folder;
  expect_refused(octet_says({"verify", golden("llama-gqa-sharded")}), {"expected"});
  const auto model = copy_of("llama-gqa", folder);
  std::string weights = read_file(model / "model.safetensors");
  write_file(model / "model.safetensors", weights.substr(0, weights.size() / 2));
  expect_refused(octet_says({"verify", model, "--device", "cpu"}), {"model.safetensors"});
  std::filesystem::remove(model / "model.safetensors");
  expect_refused(octet_says({"verify", model, "--device", "cpu"}), {"model.safetensors"});
  std::filesystem::remove(model / "config.json");
  expect_refused(octet_says({"verify", model, "--device", "cpu"}), {"config.json"});
}

TEST(Verify, RefusesFilesOfAnotherForm) {
  const Scratch folder;
  const auto model = copy_of("llama-gqa", folder);
  const json good = json::parse(read_file(model / "trajectory.json"));
  for (const char* key : {"hyper_parameters", "loss", "grad_norm", "final_norms"}) {
    json bad = good;
    bad.erase(key);
    write_file(model / "trajectory.json", bad.dump());
    expect_refused(octet_says({"verify", model, "--device", "cpu"}), {"trajectory.json", key});
  }
  write_file(model / "trajectory.json", "[]");
  expect_refused(octet_says({"verify", model, "--device", "cpu"}), {"trajectory.json"});
  expect_refused(octet_says({"verify", model, model / "model.safetensors", "--device", "cpu"}), {"input_ids"});
  expect_refused(octet_says({"verify", model, golden("llama-tied/expected.safetensors"), "--device", "cpu"}),
                 {"grad.lm_head.weight"});
}

TEST(Verify, AFailingRankEndsTheJobWithItsCode) {
  const Ran r = run({"mpirun", "-np", "2", OCTET_BINARY, "verify", "no/such/folder"});
  if (r.code == 127) GTEST_SKIP() << "no mpirun";
  if (has(r.err, "built without MPI")) GTEST_SKIP() << "built without MPI";
  EXPECT_EQ(r.code, 2) << r;
  EXPECT_TRUE(has(r.err, "rank 0 on ") && has(r.err, ": octet: no/such/folder")) << r;
}

TEST(Verify, RefusesBadOptions) {
  expect_refused(run(verify("llama-gqa", {"--dtype", "int8"})), {"param_dtype", "int8"});
  expect_refused(run(verify("llama-gqa", {"--trajectory", "t.txt"})), {"t.txt", ".json"});
  expect_refused(run(verify("llama-gqa", {"paralel.zero_stage=3"})), {"paralel", "parallel"});
  expect_refused(run(verify("llama-gqa", {"--ranks", "5"})), {"5 ranks"});
}

}  // namespace octet
