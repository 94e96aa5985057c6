// octet import makes a checkpoint of a model of transformers that training starts from.
#include "cli/tiny_run.h"
#include "golden.h"

namespace octet {
namespace {

json golden_config(const TinyRun& tiny, const std::string& model) {
  json config = tiny.config();
  config["model"] = {{"config", golden(model)}};
  return config;
}

}  // namespace

TEST(Import, TheCheckpointHoldsTheModel) {
  const Scratch folder;
  for (const std::string model : {"llama-gqa", "llama-tied", "llama-gqa-sharded", "neox-parallel", "mixtral-8x2"}) {
    const std::string out = folder / model;
    expect_done(octet_says({"import", golden(model), "--out", out}), {"parameters in fp32", "--resume"});
    for (const char* file : {"model.safetensors", "config.json", "state.json", "COMPLETE"})
      EXPECT_TRUE(std::filesystem::exists(folder / model / file)) << model << " " << file;
    const std::string expected = golden(model == "llama-gqa-sharded" ? "llama-gqa" : model) + "/expected.safetensors";
    expect_done(octet_says({"verify", out, expected, "--device", "cpu"}), {"0 beyond"});
  }
  EXPECT_EQ(folder.entries(), 5);  // nothing staged is left
}

TEST(Import, TrainingStartsFromItAtStepZero) {
  const TinyRun tiny;
  write_file(tiny.path("import.json"), golden_config(tiny, "llama-gqa").dump());
  expect_done(octet_says({"import", golden("llama-gqa"), "--out", tiny.path("start")}));
  // Golden models have 128 entries, the tokens 400: refused with both numbers.
  expect_refused(octet_says({"train", tiny.path("import.json"), "--resume", tiny.path("start")}), {"400", "128"});
  token_file(tiny.path("small.tokens"), 3000, 128);
  const auto loss_of_first_step = [&](const std::string& resume) {
    expect_done(
        octet_says({"train", tiny.path("import.json"), "data.train=" + tiny.path("small.tokens"), "training.steps=2",
                    "schedule.warmup_steps=0", "training.seq_len=16", "checkpoint.dir=", "data.tokenizer=",
                    "log.file=" + tiny.path(resume == "none" ? "fresh.jsonl" : "imported.jsonl"), "--resume", resume}));
    return tiny.losses(resume == "none" ? "fresh.jsonl" : "imported.jsonl").at(0);
  };
  EXPECT_NE(loss_of_first_step(tiny.path("start")), loss_of_first_step("none"));
}

TEST(Import, RefusesWhatIsNoModel) {
  const Scratch folder;
  const std::string out = folder / "out";
  expect_refused(octet_says({"import", "no/such", "--out", out}), {"no/such", "config.json"});
  expect_refused(octet_says({"import", golden("llama-gqa")}), {"--out is missing"});
  const std::filesystem::path model = folder / "model";
  std::filesystem::copy(golden("llama-gqa"), model, std::filesystem::copy_options::recursive);
  json config = json::parse(read_file(model / "config.json"));
  config["num_hidden_layers"] = 3;
  write_file(model / "config.json", config.dump());
  expect_refused(octet_says({"import", model, "--out", out}), {"missing", "model.layers.2."});
  config["num_hidden_layers"] = 2;
  config["vocab_size"] = 130;
  write_file(model / "config.json", config.dump());
  expect_refused(octet_says({"import", model, "--out", out}), {"embed_tokens.weight", "[130, "});
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(Import, NeverTouchesWhatIsThere) {
  const Scratch folder;
  folder.write("file", "precious");
  expect_refused(octet_says({"import", golden("llama-gqa"), "--out", folder / "file"}), {"file", "exists"});
  EXPECT_EQ(read_file(folder / "file"), "precious");
}

}  // namespace octet
