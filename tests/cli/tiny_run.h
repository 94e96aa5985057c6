#pragma once
// A run of seconds: the small text, a tokenizer and token file made by octet's own commands, and a config.
#include "cli/run.h"

namespace octet {

class TinyRun {
 public:
  TinyRun() {
    const std::string text = small_text();
    expect_done(octet_says({"tokenizer", "--input", text, "--vocab-size", "400", "--out", path("tokenizer.model")}),
                {"400 entries"});
    expect_done(octet_says({"tokenize", "--tokenizer", path("tokenizer.model"), "--input", text, "--out",
                            path("train.tokens")}),
                {"tokens of"});
    config_ = json::parse(R"({
      "device": "cpu",
      "model": {"model_type": "llama", "vocab_size": 400, "hidden_size": 32, "intermediate_size": 64,
                "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64},
      "training": {"steps": 10, "global_batch_size": 4, "micro_batch_size": 2, "seq_len": 32},
      "schedule": {"lr": 1e-2, "warmup_steps": 2},
      "precision": {"param_dtype": "fp32"}})");
    config_["data"] = {{"train", path("train.tokens")}, {"tokenizer", path("tokenizer.model")}};
    config_["checkpoint"] = {{"dir", path("run")}, {"every", 5}};
    config_["log"] = {{"file", path("metrics.jsonl")}};
    config_["memory"] = {{"plan_cache", ""}};
    write("config.json", config_);
  }
  std::string path(const std::string& name) const { return folder_ / name; }
  const Scratch& folder() const { return folder_; }
  json config() const { return config_; }
  void write(const std::string& name, const json& content) const { folder_.write(name, content.dump(2)); }

  std::vector<std::string> words(std::vector<std::string> more = {}) const {
    std::vector<std::string> all{OCTET_BINARY, "train", path("config.json")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Ran train(std::vector<std::string> more = {}) const { return run(words(std::move(more))); }

  std::vector<double> losses(const std::string& file = "metrics.jsonl") const {  // of the steps that were logged
    std::vector<double> values;
    std::istringstream lines(read_file(folder_ / file));
    for (std::string line; std::getline(lines, line);)
      if (const json record = json::parse(line); record.contains("loss")) values.push_back(record["loss"]);
    return values;
  }

 private:
  Scratch folder_;
  json config_;
};

class TrainedRun : public testing::Test {  // a TinyRun that was trained once for all tests
 protected:
  static void SetUpTestSuite() {
    run_ = new TinyRun;
    expect_done(run_->train());
  }
  static void TearDownTestSuite() { delete run_; }
  static std::string path(const std::string& name) { return run_->path(name); }
  static inline TinyRun* run_ = nullptr;
};

}  // namespace octet
