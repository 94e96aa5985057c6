// octet generate as a user types it: on a checkpoint and on a folder of transformers.
#include "cli/chain_model.h"
#include "cli/tiny_run.h"
#include "golden.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

std::vector<std::string> generate(const std::string& model, std::vector<std::string> more) {
  std::vector<std::string> words{OCTET_BINARY, "generate", model, "--device", "cpu"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
Ran says(const std::string& model, std::vector<std::string> more) { return run(generate(model, std::move(more))); }

using Generate = TrainedRun;

TEST_F(Generate, GoesOnWithTextFromACheckpointOrARunsFolder) {
  const Ran newest = says(path("run"), {"--prompt", "The ", "--max-new-tokens", "25"});
  expect_done(newest);
  EXPECT_GT(newest.out.size(), 5u);
  EXPECT_TRUE(has(newest.err, "prompts: ") && has(newest.err, "a second")) << newest;
  EXPECT_EQ(says(path("run/step-00000010"), {"--prompt", "The ", "--max-new-tokens", "25"}).out, newest.out);
  const Ran as_json = says(path("run"), {"--prompt", "The ", "--max-new-tokens", "25", "--json"});
  expect_done(as_json);
  const json report = json::parse(as_json.out);
  const json& one = report["sequences"][0];
  EXPECT_EQ(one["text"].get<std::string>() + "\n", newest.out);
  EXPECT_EQ(one["prompt_ids"][0], 1);  // BOS
  EXPECT_EQ(one["ids"].size() == 25, one["end"] == "length");
  EXPECT_EQ(report["decode"]["tokens"].get<size_t>(), one["ids"].size() - 1);
  EXPECT_EQ(report["prefill"]["tokens"].get<size_t>(), one["prompt_ids"].size());
}

TEST_F(Generate, SeveralPromptsAreThoseOfEachAlone) {
  const Ran both =
      says(path("run"), {"--prompt", "The ", "A much longer beginning of a text", "--max-new-tokens", "20"});
  expect_done(both, {"[1] ", "\n[2] "});
  const std::string first = says(path("run"), {"--prompt", "The ", "--max-new-tokens", "20"}).out;
  const std::string second =
      says(path("run"), {"--prompt", "A much longer beginning of a text", "--max-new-tokens", "20"}).out;
  EXPECT_EQ(both.out, "[1] " + first + "[2] " + second);
  EXPECT_EQ(says(path("run"), {"--prompt", "The ", "--prompt", "A much longer beginning of a text", "--batch", "1",
                               "--max-new-tokens", "20"})
                .out,
            both.out);
}

TEST_F(Generate, DrawsByItsSeed) {
  const auto drawn = [&](const std::string& seed, std::vector<std::string> more = {}) {
    std::vector<std::string> words{"--prompt",      "The ", "--max-new-tokens", "30",
                                   "--temperature", "1.5",  "--seed",           seed};
    words.insert(words.end(), more.begin(), more.end());
    const Ran r = says(path("run"), words);
    expect_done(r);
    return r.out;
  };
  EXPECT_EQ(drawn("3"), drawn("3"));
  EXPECT_NE(drawn("3"), drawn("4"));
  const std::string greedy = says(path("run"), {"--prompt", "The ", "--max-new-tokens", "30"}).out;
  EXPECT_NE(drawn("3"), greedy);
  EXPECT_EQ(drawn("3", {"--top-k", "1"}), greedy);
  EXPECT_EQ(drawn("3", {"--top-p", "0"}), greedy);
}

TEST_F(Generate, TextWithZeroBytesIsPrintedWhole) {
  std::vector<std::string> words{"--max-new-tokens", "60", "--temperature", "1000", "--ignore-eos", "--prompt"};
  words.insert(words.end(), 20, "a");
  const Ran text = says(path("run"), words);
  words.insert(words.begin(), "--json");
  const json all = json::parse(says(path("run"), words).out)["sequences"];
  std::string expected;
  for (size_t i = 0; i < all.size(); ++i) expected += concat("[", i + 1, "] ", all[i]["text"].get<std::string>(), "\n");
  EXPECT_TRUE(expected.find('\0') != std::string::npos) << "no zero byte was drawn: take another seed";
  EXPECT_EQ(text.out, expected);
}

TEST(GenerateFolder, LogitsThatAreNoNumbersAreAnError) {
  const Scratch folder;
  for (const float factor : {NAN, INFINITY}) {
    const std::string model = chain_model(folder, {5, 6, 7}, 40, factor);
    const auto of = [&](std::vector<std::string> more) {
      more.insert(more.begin(), {"--prompt-ids", "5", "--max-new-tokens", "4"});
      return says(model, more);
    };
    expect_refused(of({}), {"not finite", "weights", "--dtype"});
    expect_refused(of({"--temperature", "1"}), {"not finite"});
    expect_refused(of({"--json", "--repetition-penalty", "1.5"}), {"not finite"});
    std::filesystem::remove_all(model);
  }
}

TEST(GenerateFolder, IdsOfAFolderOfTransformersAreItsOwn) {
  for (const std::string model : {"llama-gqa", "llama-gqa-sharded", "neox-parallel", "mixtral-8x2"}) {
    const json expected = json::parse(read_file(golden(model + "/generate.json")));
    const json& c = expected["cases"][0];
    std::string prompt, ids;
    for (const json& id : c["prompt"]) prompt += (prompt.empty() ? "" : ",") + std::to_string(id.get<int>());
    for (const json& id : c["ids"]) ids += (ids.empty() ? "" : ",") + std::to_string(id.get<int>());
    const std::string most = std::to_string(expected["max_new_tokens"].get<int>());
    const Ran r = says(golden(model), {"--prompt-ids", prompt, "--max-new-tokens", most});
    expect_done(r);
    EXPECT_EQ(r.out, ids + "\n") << model;
  }
}

TEST(GenerateFolder, StopsAtAToken) {
  const json c = json::parse(read_file(golden("llama-gqa/generate.json")))["cases"][0];
  const int third = c["ids"][2];
  std::string prompt;
  for (const json& id : c["prompt"]) prompt += (prompt.empty() ? "" : ",") + std::to_string(id.get<int>());
  const Ran r = says(golden("llama-gqa"), {"--prompt-ids", prompt, "--stop-ids", std::to_string(third), "--json"});
  expect_done(r);
  const json s = json::parse(r.out)["sequences"][0];
  EXPECT_EQ(s["end"], "stop");
  EXPECT_EQ(s["ids"].back(), third);
  EXPECT_LE(s["ids"].size(), 3u);
  const Ran whole =
      says(golden("llama-gqa"), {"--prompt-ids", "1,5", "--ignore-eos", "--max-new-tokens", "500", "--json"});
  expect_done(whole);
  EXPECT_EQ(json::parse(whole.out)["sequences"][0]["end"], "positions");
  EXPECT_EQ(json::parse(whole.out)["sequences"][0]["ids"].size(), 126u);
}

// Chat models have several ends, in generation_config.json or config.json, and transformers stops at each of them. Here
// the third and the fifth token that the model says.
TEST(GenerateFolder, StopsAtEachEndOfTextThatItsFilesName) {
  const Scratch scratch;
  const fs::path model = scratch / "model";
  copy_folder(golden("llama-gqa"), model);
  const auto ends = [&](const char* file, const json& ids) {
    json fields = read_json((model / file).string());
    fields["eos_token_id"] = ids;
    write_file(model / file, fields.dump());
  };
  const auto said = [&](const fs::path& folder, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"--prompt-ids", "1,5,9,17,33,65", "--max-new-tokens", "8", "--json"});
    const Ran r = says(folder, more);
    expect_done(r);
    return json::parse(r.out)["sequences"][0]["ids"].get<std::vector<int>>();
  };
  using Ids = std::vector<int>;
  ends("generation_config.json", {2, 107, 44});
  EXPECT_EQ(said(model), (Ids{116, 116, 44}));
  EXPECT_EQ(said(model, {"model.eos_token_id=107"}), (Ids{116, 116, 44, 116, 107}));
  EXPECT_EQ(said(model, {"--ignore-eos"}), (Ids{116, 116, 44, 116, 107, 0, 0, 0}));
  fs::remove(model / "generation_config.json");
  ends("config.json", {2, 107});
  EXPECT_EQ(said(model), (Ids{116, 116, 44, 116, 107}));
  expect_done(octet_says({"import", model, "--out", scratch / "start"}));  // they come along
  EXPECT_EQ(said(scratch / "start"), (Ids{116, 116, 44, 116, 107}));
  expect_done(octet_says({"export", scratch / "start", "--out", scratch / "hf"}));
  EXPECT_EQ(read_json((scratch / "hf" / "generation_config.json").string())["eos_token_id"], json({2, 107}));
  ends("config.json", "</s>");
  expect_refused(says(model, {"--prompt-ids", "1"}), {"config.json", "eos_token_id"});
}

TEST(GenerateFolder, OtherTypesAndRandomWeights) {
  for (const char* dtype : {"bf16", "fp16"})
    expect_done(
        says(golden("neox-sequential"), {"--prompt-ids", "1,2,3", "5", "--dtype", dtype, "--max-new-tokens", "5"}),
        {"[1] ", "[2] "});
  const Scratch folder;
  std::filesystem::copy(golden("mixtral-4x1/config.json"), folder / "config.json");
  expect_done(says(folder / "config.json", {"--random-init", "--prompt-ids", "1,2,3", "--max-new-tokens", "5"}), {","});
  expect_done(says(std::string(CONFIGS) + "/mixtral_tiny.json",
                   {"--random-init", "--prompt-ids", "1,2,3", "9", "--max-new-tokens", "3", "--ignore-eos"}),
              {"[1] ", "[2] "});
  expect_refused(says("no.json", {"--random-init", "--prompt-ids", "1"}), {"no.json"});
}

// A prompt is any text: over lines, long, beginning like an option.
TEST_F(Generate, APromptIsAnyText) {
  const auto ids = [&](const std::vector<std::string>& words) {
    std::vector<std::string> more{"--max-new-tokens", "1", "--json"};
    more.insert(more.end(), words.begin(), words.end());
    const Ran r = says(path("run"), more);
    expect_done(r);
    json all = json::array();
    const json report = r.code == 0 ? json::parse(r.out) : json{{"sequences", json::array()}};
    for (const json& s : report["sequences"]) all.push_back(s["prompt_ids"]);
    return all;
  };
  const json lines = ids({"--prompt", "The sea\n\nand a gull"});
  EXPECT_EQ(lines, ids({"--prompt=The sea\n\nand a gull"}));
  EXPECT_NE(lines, ids({"--prompt", "The sea and a gull"}));
  EXPECT_EQ(ids({"--prompt", "a\nb", "- b", "-1"}),
            (json{ids({"--prompt=a\nb"})[0], ids({"--prompt=- b"})[0], ids({"--prompt=-1"})[0]}));
  expect_refused(says(path("run"), {"--prompt", "--json"}), {"--prompt needs a value"});
}

TEST_F(Generate, RefusesWhatIsNoModel) {
  const std::vector<std::string> ids{"--prompt-ids", "1,2"};
  expect_refused(says("no/such/folder", ids), {"no/such/folder", "no such folder"});
  expect_refused(says(golden("llama-gqa/config.json"), ids), {"config.json", "is a file"});
  const Scratch empty;
  expect_refused(says(empty / "", ids), {"config.json", "step-N"});
  const auto cut = empty / "cut";
  std::filesystem::copy(path("run/step-00000010"), cut, std::filesystem::copy_options::recursive);
  std::filesystem::remove(cut / "COMPLETE");
  expect_refused(says(cut, ids), {"COMPLETE"});
  write_file(cut / "COMPLETE", "");
  const std::string weights = read_file(cut / "model.safetensors");
  write_file(cut / "model.safetensors", weights.substr(0, weights.size() / 2));
  expect_refused(says(cut, ids), {"model.safetensors"});
  write_file(cut / "model.safetensors", "not a model");
  expect_refused(says(cut, ids), {"model.safetensors"});
  std::string ints = weights;
  for (size_t at = ints.find("\"F32\""); at != std::string::npos; at = ints.find("\"F32\"", at))
    ints.replace(at, 5, "\"I32\"");
  write_file(cut / "model.safetensors", ints);
  expect_refused(says(cut, ids), {"model.safetensors", "I32"});
  std::filesystem::remove(cut / "model.safetensors");
  expect_refused(says(cut, ids), {"model.safetensors"});
  std::filesystem::copy_file(golden("llama-gqa/model.safetensors"), cut / "model.safetensors");
  expect_refused(says(cut, ids), {"does not hold the model"});
  write_file(cut / "config.json", "{");
  expect_refused(says(cut, ids), {"config.json"});
}

TEST_F(Generate, RefusesWhatItCannotDo) {
  const std::string model = path("run"), other = golden("llama-gqa");
  expect_refused(says(model, {}), {"--prompt"});
  expect_refused(run({OCTET_BINARY, "generate", "--prompt", "x"}), {"folder of one model"});
  expect_refused(says(other, {"--prompt", "text"}), {"tokenizer.model", "--tokenizer"});
  expect_refused(says(other, {"--prompt", "text", "--tokenizer", path("tokenizer.model")}), {"400", "128"});
  expect_refused(says(other, {"--prompt", "text", "--tokenizer", golden("llama-gqa/config.json")}), {"sentencepiece"});
  for (const char* ids : {"1,x", "1,,2", "1,-3", "", "1,2,", "99999999999"})
    expect_refused(says(other, {"--prompt-ids", ids}), {"--prompt-ids"});
  expect_refused(says(other, {"--prompt-ids", "1,128"}), {"128"});
  expect_refused(says(other, {"--prompt-ids", "1", "--stop-ids", "5,128"}), {"--stop-ids: 128"});
  expect_refused(says(model, {"--prompt", std::string(100'000, 'a')}), {"shorten"});
  expect_refused(says(model, {"--prompt", "x", "-" + std::string(100'000, 'a')}), {"unknown option -aaa"});
  expect_refused(says(model, {"--prompt", "", "--no-bos"}), {"prompt is empty"});
  std::string many = "1";
  for (int i = 0; i < 127; ++i) many += ",1";
  expect_refused(says(other, {"--prompt-ids", many}), {"128", "shorten"});
  const std::vector<std::vector<std::string>> bad{{"--temperature", "-1"},
                                                  {"--temperature", "warm"},
                                                  {"--top-p", "1.5", "--temperature", "1"},
                                                  {"--top-k", "2.5"},
                                                  {"--top-k", "5"},
                                                  {"--max-new-tokens", "0"},
                                                  {"--batch", "0"},
                                                  {"--dtype", "int8"},
                                                  {"--device", "tpu"},
                                                  {"--repetition-penalty", "0"},
                                                  {"--stop-ids", "end"},
                                                  {"--seed", "-1"}};
  for (std::vector<std::string> words : bad) {
    const std::string option = words[0] == "--dtype" ? "param_dtype" : words[0].substr(2);
    words.insert(words.end(), {"--prompt-ids", "1,2"});
    expect_refused(says(other, words), {option});
  }
  expect_refused(says(other, {"--prompt-ids", "1", "--promt", "x"}), {"promt"});
  expect_refused(says(other, {"--prompt-ids", "1", "--dtype", "fp64x"}), {"fp64x"});
}

}  // namespace
}  // namespace octet
