// A tokenizer.json serves wherever a tokenizer.model does: it makes tokens, goes with checkpoints, imports and exports,
// and turns prompts and answers of a model into ids and back.
#include "cli/chain_model.h"
#include "cli/tiny_run.h"
#include "data/tokenizer.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

const std::string kNeox = std::string(GOLDEN) + "/tokenizers/neox";
const std::string kLlama3 = std::string(GOLDEN) + "/tokenizers/llama3/tokenizer.json";

}  // namespace

TEST(TokenizerJson, ServesARunFromTextToExport) {
  const TinyRun tiny;
  const std::string tokens = tiny.path("neox.tokens"), run = tiny.path("run"), hf = tiny.path("hf");
  expect_done(octet_says({"tokenize", "--tokenizer", kNeox, "--input", small_text(), "--out", tokens}),
              {"vocabulary 405"});
  expect_done(
      octet_says({"tokenize", "--decode", "--tokenizer", kNeox, "--input", tokens, "--out", tiny.path("back.txt")}));
  EXPECT_EQ(read_file(tiny.path("back.txt")), read_file(small_text()));
  expect_done(tiny.train({"data.train=[\"" + tokens + "\"]", "data.tokenizer=" + kNeox, "model.vocab_size=405"}));
  const fs::path step = fs::path(run) / "step-00000010";
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    EXPECT_EQ(read_file(step / name), read_file(fs::path(kNeox) / name));
  EXPECT_FALSE(fs::exists(step / "tokenizer.model"));

  // "the " has two tokens, and the tokenizer puts none before them.
  const Tokenizer tokenizer{fs::path(kNeox)};
  const Ran ran =
      octet_says({"generate", run, "--prompt", "the marsh", "--max-new-tokens", "5", "--json", "--ignore-eos"});
  expect_done(ran);
  const json said = json::parse(ran.out)["sequences"][0];
  EXPECT_EQ(said["prompt_ids"].get<std::vector<int>>(), tokenizer.encode("the marsh"));
  std::vector<int> ids = said["prompt_ids"], more = said["ids"];
  ids.insert(ids.end(), more.begin(), more.end());
  EXPECT_EQ("the marsh" + said["text"].get<std::string>(), tokenizer.decode(ids));

  const auto loss = [&](const std::string& data) {
    const Ran r = octet_says({"eval", run, "--data", data, "--json"});
    expect_done(r);
    return json::parse(r.out)["all"]["loss"].get<double>();
  };
  EXPECT_EQ(loss(small_text()), loss(tokens));  // text by the checkpoint's own tokenizer

  expect_done(octet_says({"export", run, "--out", hf}));
  EXPECT_EQ(read_file(hf + "/tokenizer.json"), read_file(kNeox + "/tokenizer.json"));
  const json config = read_json(hf + "/config.json");
  EXPECT_EQ(config["eos_token_id"], 0);  // <|endoftext|>, whatever the run's config said
  EXPECT_EQ(config["bos_token_id"], 1);
  expect_done(octet_says({"import", hf, "--out", tiny.path("again")}));
  EXPECT_EQ(read_json(tiny.path("again") + "/state.json")["tokenizer"], std::to_string(tokenizer.fingerprint()));
  expect_done(octet_says({"generate", tiny.path("again"), "--prompt", "the", "--max-new-tokens", "2"}));
}

TEST(TokenizerJson, AnotherOneIsRefusedAndInspectShowsIt) {
  const TinyRun tiny;
  const std::string tokens = tiny.path("neox.tokens");
  expect_done(octet_says({"tokenize", "--tokenizer", kNeox, "--input", small_text(), "--out", tokens}));
  expect_refused(tiny.train({"data.train=[\"" + tokens + "\"]", "data.tokenizer=" + kLlama3, "model.vocab_size=405"}),
                 {"llama3", "not the tokenizer"});
  expect_done(octet_says({"inspect", kLlama3}), {"tokenizer (tokenizer.json)", "405", "bos 400, eos 401"});
  expect_done(octet_says({"inspect", tokens, "--tokenizer", kNeox, "--documents", "1"}), {"marsh"});
  expect_refused(octet_says({"inspect", tiny.path("config.json")}), {"config.json", "tokenizer.json"});
}

// What bytes are depends on those behind them: printed as they come, "\u6f22" of three would be taken back by an
// invalid fourth, which makes U+FFFD of each.
TEST(TokenizerJson, BytesArePrintedAsTheTextOfAllTokens) {
  const std::string files = std::string(GOLDEN) + "/tokenizers/llama2";
  const Tokenizer tokenizer(files);
  const auto byte = [](int32_t b) { return 3 + b; };
  ASSERT_EQ(tokenizer.piece(byte(0xe6)), "<0xE6>");
  const int32_t a = tokenizer.encode("a").back();
  int32_t b = 0;
  while (tokenizer.piece(b) != "b") ++b;
  for (const auto& [chain, text] : std::vector<std::pair<std::vector<int32_t>, std::string>>{
           {{a, byte(0xe6), byte(0xbc), byte(0xa2), b},
            "\xe6\xbc\xa2"
            "b"},
           {{a, byte(0xe6), byte(0xbc), byte(0xa2), byte(0xff), b},
            "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
            "b"},
           {{a, byte(0xe6), byte(0xbc)}, "\xef\xbf\xbd\xef\xbf\xbd"},
           {{a, byte(0xff), b},
            "\xef\xbf\xbd"
            "b"}}) {
    const Scratch folder;
    const std::string model = chain_model(folder, chain, tokenizer.vocab_size());
    const std::string more = std::to_string(chain.size() - 1);
    const Ran r = octet_says({"generate", model, "--device", "cpu", "--prompt", "a", "--no-bos", "--max-new-tokens",
                              more, "--tokenizer", files});
    expect_done(r);
    EXPECT_EQ(r.out, text + "\n");
    EXPECT_EQ(tokenizer.decode(chain), "a" + text);  // all at once
    const Ran as_json = octet_says({"generate", model, "--device", "cpu", "--prompt", "a", "--no-bos",
                                    "--max-new-tokens", more, "--tokenizer", files, "--json"});
    EXPECT_EQ(json::parse(as_json.out)["sequences"][0]["text"], text);
  }
}

}  // namespace octet
