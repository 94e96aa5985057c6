// On a GPU octet generate chooses transformers' tokens, as the CPU engine does, and octet eval finds the same losses.
#include "cli/tiny_run.h"
#include "golden.h"
#include "host/engine.h"

namespace octet {
namespace {

class GpuGeneration : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu::engine().available()) GTEST_SKIP() << "no GPU";
  }
  static std::string joined(const json& ids) {
    std::string text;
    for (const json& id : ids) text += (text.empty() ? "" : ",") + std::to_string(id.get<int>());
    return text;
  }
};

TEST_F(GpuGeneration, GreedyInFp32IsTransformersTokenForToken) {
  for (const char* model :
       {"llama-mha", "llama-gqa", "llama-tied", "neox-parallel", "neox-sequential", "mixtral-8x2", "mixtral-4x1"})
    for (const double penalty : {1.0, 1.3}) {
      const json expected = json::parse(read_file(golden(std::string(model) + "/generate.json")));
      std::vector<std::string> words{"generate",
                                     golden(model),
                                     "--device",
                                     "cuda",
                                     "--dtype",
                                     "fp32",
                                     "--json",
                                     "--repetition-penalty",
                                     std::to_string(penalty),
                                     "--max-new-tokens",
                                     std::to_string(expected["max_new_tokens"].get<int>()),
                                     "--prompt-ids"};
      json want = json::array();
      for (const json& c : expected["cases"])
        if (c["repetition_penalty"] == penalty) words.push_back(joined(c["prompt"])), want.push_back(c["ids"]);
      words.insert(words.end(), {"--batch", penalty == 1 ? "3" : "4"});
      const Ran r = octet_says(words);
      expect_done(r);
      const json said = json::parse(r.out);
      json got = json::array();
      for (const json& s : said["sequences"]) got.push_back(s["ids"]);
      EXPECT_EQ(got, want) << model;
    }
}

// Steps are recorded once and replayed for every batch; with fewer sequences they are recorded again. The same prompt
// has the same answer each time, of any architecture.
TEST_F(GpuGeneration, ReplayedStepsSayTheSameAgain) {
  for (const char* model : {"llama-gqa", "neox-parallel", "mixtral-8x2"})
    for (const char* dtype : {"bf16", "fp32"}) {
      std::vector<std::string> words{"generate", golden(model),  "--device",         "cuda", "--dtype",     dtype,
                                     "--json",   "--ignore-eos", "--max-new-tokens", "90",   "--prompt-ids"};
      for (const char* prompt : {"5,17,3", "9,2", "5,17,3", "9,2", "5,17,3"}) words.push_back(prompt);
      for (const char* batch : {"1", "2"}) {
        std::vector<std::string> all = words;
        all.insert(all.end(), {"--batch", batch});
        const Ran r = octet_says(all);
        expect_done(r);
        const json said = json::parse(r.out)["sequences"];
        EXPECT_EQ(said[0]["ids"].size(), 90u) << model;
        EXPECT_EQ(said[0]["ids"], said[2]["ids"]) << model << " " << dtype << " in batches of " << batch;
        EXPECT_EQ(said[1]["ids"], said[3]["ids"]) << model << " " << dtype << " in batches of " << batch;
        if (batch == std::string("1")) { EXPECT_EQ(said[0]["ids"], said[4]["ids"]) << model << " " << dtype; }
      }
    }
}

TEST_F(GpuGeneration, ACheckpointSaysAndScoresTheSameOnBothDevices) {
  const TinyRun run;
  expect_done(run.train({"device=cpu"}));
  std::vector<std::string> texts;
  std::vector<double> losses;
  for (const char* device : {"cpu", "cuda"}) {
    const Ran said = octet_says({"generate", run.path("run"), "--device", device, "--dtype", "fp32", "--prompt", "The ",
                                 "--max-new-tokens", "30"});
    expect_done(said);
    texts.push_back(said.out);
    const Ran scored = octet_says(
        {"eval", run.path("run"), "--device", device, "--dtype", "fp32", "--data", run.path("train.tokens"), "--json"});
    expect_done(scored);
    losses.push_back(json::parse(scored.out)["all"]["loss"]);
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_NEAR(losses[1] / losses[0], 1, 1e-5);
  const Ran half =
      octet_says({"eval", run.path("run"), "--device", "cuda", "--data", run.path("train.tokens"), "--json"});
  expect_done(half);  // bf16
  EXPECT_NEAR(json::parse(half.out)["all"]["loss"].get<double>() / losses[0], 1, 1e-2);
  expect_done(octet_says({"generate", run.path("run"), "--device", "cuda", "--prompt", "The ", "One ", "--temperature",
                          "0.8", "--top-p", "0.9", "--max-new-tokens", "20"}),
              {"[1] ", "[2] "});
}

}  // namespace
}  // namespace octet
