// What is wrong with a config or an override is refused with its place, before anything is computed.
#include "cli/tiny_run.h"

namespace octet {
namespace {

const std::string kTiny = CONFIGS "/tiny_llama.json";

Ran with_config(const std::string& text) {
  const Scratch folder;
  return octet_says({"train", folder.write("c.json", text)});
}

}  // namespace

TEST(ConfigErrors, AMissingFileIsNamed) { expect_refused(octet_says({"train", "no/such.json"}), {"no/such.json"}); }

TEST(ConfigErrors, AMissingTokenFileIsNamedWithItsOption) {
  const TinyRun tiny;
  expect_refused(tiny.train({"data.train=absent"}), {"data.train: no file matches 'absent'"});
  expect_refused(tiny.train({"data.validation=absent"}), {"data.validation: no file matches 'absent'"});
  expect_done(tiny.train({"data.validation=", "training.steps=1"}), {"step 1/1"});
}

TEST(ConfigErrors, UnknownKeysHaveSuggestions) {
  expect_refused(octet_says({"train", kTiny, "training.stepps=5"}),
                 {"training.stepps", "did you mean", "training.steps"});
  expect_refused(octet_says({"train", kTiny, "steps=5"}), {"steps", "training.steps"});
  expect_refused(with_config(R"({"model": {"preset": "tiny-llama"}, "trainig": {"steps": 5}})"),
                 {"c.json", "trainig", "training"});
  expect_refused(with_config(R"({"model": {"preset": "tiny-lama"}})"), {"tiny-lama", "tiny-llama"});
}

TEST(ConfigErrors, MistypedValuesAreRefused) {
  expect_refused(octet_says({"train", kTiny, "training.steps=many"}),
                 {"training.steps", "expected an integer", "many"});
  expect_refused(octet_says({"train", kTiny, "schedule.lr=-1"}), {"schedule.lr", "out of range"});
  expect_refused(octet_says({"train", kTiny, "device=tpu"}), {"device", "tpu"});
  expect_refused(octet_says({"train", kTiny, "--dry-run", "extra.json"}), {"give one config file"});
  expect_refused(octet_says({"train", kTiny, "training.steps=5", "nonsense"}), {"nonsense", "section.key=value"});
}

TEST(ConfigErrors, DuplicateKeysAndBrokenJsonAreRefused) {
  expect_refused(with_config(R"({"training": {"steps": 5, "steps": 6}})"), {"c.json", "steps"});
  expect_refused(with_config("{\n  \"training\": {\"steps\": }\n}"), {"c.json:2:"});
}

TEST(ConfigErrors, MissingKeysAreNamed) {
  expect_refused(with_config(R"({"training": {"steps": 5}})"), {"model is missing"});
  expect_refused(with_config(R"({"model": {"preset": "tiny-llama"}, "training": {"steps": 5}})"),
                 {"data.train is missing", "octet tokenize"});
  expect_refused(with_config(R"({"model": {"preset": "tiny-llama"}, "data": {"train": "x.tokens"}})"),
                 {"training.steps or training.tokens is missing"});
}

TEST(ConfigErrors, OptionsThatContradictAreRefused) {
  expect_refused(octet_says({"train", kTiny, "training.seq_len=512"}), {"training.seq_len", "256"});
  expect_refused(octet_says({"train", kTiny, "--ranks", "3"}), {"global_batch_size", "3 ranks"});
  expect_refused(octet_says({"train", kTiny, "precision.loss_scaling=static", "precision.loss_scale=1e300"}),
                 {"precision.loss_scale", "1e+300"});
  expect_refused(octet_says({"plan", kTiny, "--target", "h100", "precision.param_dtype=fp16"}),
                 {"precision.param_dtype=fp16", "CPU engine only", "use bf16"});
  expect_refused(octet_says({"train", kTiny, "--json"}), {"--json needs --dry-run"});
}

// state.json could not hold the name: the run ended with its first save.
TEST(ConfigErrors, ANameThatIsNotUtf8IsRefusedBeforeTheRun) {
  expect_refused(octet_says({"train", kTiny, "checkpoint.dir=out/caf\xe9"}), {"checkpoint.dir", "not UTF-8", "link"});
  expect_refused(octet_says({"plan", kTiny, "--json", "data.train=caf\xe9.tokens"}), {"data.train", "not UTF-8"});
  const Scratch folder;
  std::filesystem::create_directory_symlink(GOLDEN "/llama-mha", folder / "caf\xe9");
  expect_refused(octet_says({"verify", folder / "caf\xe9"}), {"the model", "not UTF-8"});
  expect_refused(octet_says({"eval", folder / "caf\xe9", "--data", small_text()}), {"the model", "not UTF-8"});
  const Ran made = octet_says({"export", folder / "caf\xe9", "--out", folder / "caf\xe9-hf", "--json"});
  expect_done(made, {"caf\xef\xbf\xbd-hf"});
}

TEST(ConfigErrors, AMissingTokenFileIsNamed) {
  expect_refused(octet_says({"train", kTiny, "data.train=no/such.tokens"}), {"no/such.tokens"});
}

TEST(ConfigErrors, ANameOfNoConfigGetsASuggestion) {
  const auto says = [](const std::string& folder, const std::string& config) {
    return run({"sh", "-c", concat("cd '", folder, "' && ", OCTET_BINARY, " plan '", config, "'")});
  };
  const std::string root = CONFIGS "/..";
  for (const char* name : {"tiny_llama", "tiny-llama.json", "tiny_lama.json"})
    expect_refused(says(root, name), {concat("'", name, "'"), "did you mean configs/tiny_llama.json?"});
  expect_refused(says(root, "configs/llama2_7b.jsn"), {"did you mean configs/llama2_7b.json?"});
  const Scratch empty;
  expect_refused(says(empty / "", "tiny_llama"),
                 {"'tiny_llama'", "relative to " + (empty / "").parent_path().string()});
  expect_refused(octet_says({"plan", empty / ""}), {"is a folder"});
  expect_refused(octet_says({"plan", kTiny, "model={\"config\": \"no/such/config.json\"}"}),
                 {"tiny_llama.json: model.config", "no/such/config.json"});
}

TEST(ConfigErrors, ASectionIsNoOption) {
  expect_refused(octet_says({"plan", kTiny, "training=5"}),
                 {"training is a section", "training.", "octet help config"});
}

TEST(ConfigErrors, ATokenizerThatDidNotMakeTheTokensIsRefused) {
  const TinyRun tiny;
  const std::string other = "data.tokenizer=" + tiny.path("other.model");
  tiny.folder().write("other.model", read_file(tiny.path("tokenizer.model")) + "x");
  expect_refused(tiny.train({other}), {"other.model", "not the tokenizer", "train.tokens"});
  EXPECT_FALSE(std::filesystem::exists(tiny.path("run")));
  expect_done(tiny.train({other, "checkpoint.dir="}), {"step 10/10"});  // nobody keeps it
}

TEST(ConfigErrors, ADeviceThatIsNotThereIsRefused) {
  const Ran r = octet_says({"bench", kTiny, "device=cuda", "--steps", "1", "--warmup", "0"});
  if (r.code == 0) GTEST_SKIP() << "there is a GPU";
  expect_refused(r, {"device=cpu"});
}

}  // namespace octet
