// Training on a GPU, as a user starts it: two deterministic runs give the same bits, stopping and resuming changes
// none, and the losses are those of the CPU engine.

#include "cli/tiny_run.h"
#include "host/engine.h"

namespace octet {
namespace {

class GpuTraining : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu::engine().available()) GTEST_SKIP() << "no GPU";
  }
  // Ten steps into a checkpoint folder of that name; returns what the last checkpoint's tensors are.
  std::string tensors(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words{"device=cuda", "training.deterministic=true", "checkpoint.dir=" + run_.path(name),
                                   "log.file=" + run_.path(name + ".jsonl")};
    words.insert(words.end(), more.begin(), more.end());
    expect_done(run_.train(words));
    const std::string folder = run_.path(name) + "/step-00000010/";
    return read_file(folder + "model.safetensors") + read_file(folder + "optimizer.safetensors");
  }
  TinyRun run_;
};

const std::vector<std::vector<std::string>> kKinds{
    {"precision.param_dtype=fp32"},
    {"precision.param_dtype=bf16", "model.attention=native"},
    {"precision.param_dtype=bf16", "model.attention=auto"},
    {"precision.param_dtype=bf16", "precision.moment_dtype=bf16", "precision.master_dtype=bf16"},
    {"precision.param_dtype=bf16", "fp8.enabled=true"}};

TEST_F(GpuTraining, RepeatsAndResumesBitForBit) {
  for (size_t i = 0; i < kKinds.size(); ++i) {
    const std::string name = "kind" + std::to_string(i);
    const std::string whole = tensors(name, kKinds[i]);
    EXPECT_EQ(whole, tensors(name + "again", kKinds[i])) << kKinds[i][0];
    std::vector<std::string> first = kKinds[i];
    first.push_back("training.stop_after=5");
    std::vector<std::string> words{"device=cuda", "training.deterministic=true",
                                   "checkpoint.dir=" + run_.path(name + "parts")};
    words.insert(words.end(), first.begin(), first.end());
    expect_done(run_.train(words));
    EXPECT_EQ(whole, tensors(name + "parts", kKinds[i])) << kKinds[i][0];
  }
}

TEST_F(GpuTraining, LearnsWhatTheCpuLearns) {
  for (const auto& [type, tolerance] : {std::pair{"fp32", 1e-4}, std::pair{"bf16", 1e-2}}) {
    const std::string precision = std::string("precision.param_dtype=") + type;
    for (const char* device : {"cpu", "cuda"})
      expect_done(run_.train({"device=" + std::string(device), precision,
                              "checkpoint.dir=", "log.file=" + run_.path(std::string(type) + device + ".jsonl")}));
    const auto cpu = run_.losses(std::string(type) + "cpu.jsonl"), gpu = run_.losses(std::string(type) + "cuda.jsonl");
    ASSERT_EQ(cpu.size(), 10u);
    ASSERT_EQ(gpu.size(), 10u);
    for (size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(gpu[i] / cpu[i], 1, tolerance) << type << " step " << i;
  }
}

}  // namespace
}  // namespace octet
