// data.intra_document_mask as a user meets it: training, resuming, ranks, evaluation as trained, and where it has no
// place; and the name that data.document_loss_mask had before.
#include "cli/tiny_run.h"

namespace octet {
namespace {

const std::string kMask = "data.intra_document_mask=true";

// TinyRun, but each paragraph of the text is a document.
class Paragraphs : public TinyRun {
 public:
  Paragraphs() {
    std::string lines, text = read_file(small_text());
    for (size_t at = 0, end = 0; at < text.size(); at = end + 2) {
      end = std::min(text.find("\n\n", at), text.size());
      if (end > at) lines += json{{"text", text.substr(at, end - at)}}.dump() + "\n";
    }
    folder().write("text.jsonl", lines);
    expect_done(octet_says({"tokenize", "--tokenizer", path("tokenizer.model"), "--input", path("text.jsonl"), "--out",
                            path("train.tokens")}),
                {"tokens of"});
    const TokenFile file(path("train.tokens"));
    EXPECT_GT(file.documents(), 40);
    EXPECT_LT(file.documents(), file.tokens() / 32);  // so that windows run across documents, and documents of windows
  }
};
const Paragraphs& paragraphs() {
  static const Paragraphs one;
  return one;
}
std::vector<std::string> in(const std::string& folder, std::vector<std::string> more) {  // of the same data
  more.push_back("checkpoint.dir=" + paragraphs().path(folder));
  more.push_back("log.file=" + paragraphs().path(folder + ".jsonl"));
  return more;
}
Ran train(const std::string& folder, std::vector<std::string> more) {
  return paragraphs().train(in(folder, std::move(more)));
}
std::vector<double> losses(const std::string& folder) { return paragraphs().losses(folder + ".jsonl"); }

TEST(IntraDocument, TrainsAndFivePlusFiveStepsAreTen) {
  expect_done(train("plain", {}), {"step 10/10"});
  expect_done(train("whole", {kMask}), {"step 10/10"});
  expect_done(train("parts", {kMask, "training.stop_after=5"}), {"step-00000005"});
  const Ran resumed = train("parts", {kMask});
  expect_done(resumed, {"resumed from " + paragraphs().path("parts/step-00000005")});
  EXPECT_FALSE(has(resumed.err, "data or its order")) << resumed;
  EXPECT_EQ(losses("whole"), losses("parts"));
  EXPECT_NE(losses("whole"), losses("plain"));
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(read_file(paragraphs().path("whole/step-00000010/") + file) ==
                read_file(paragraphs().path("parts/step-00000010/") + file))
        << file;
  const Ran without = train("parts", {"training.steps=11"});
  expect_done(without, {"step 11/11"});
  EXPECT_TRUE(has(without.err, "the training data or its order differs from that of")) << without;
}

TEST(IntraDocument, TwoRanksHaveTheLossesOfOne) {
  expect_done(train("one", {kMask}));
  const std::vector<double> one = losses("one");
  for (const char* stage : {"0", "3"}) {
    expect_done(train("two", {kMask, "--ranks", "2", std::string("parallel.zero_stage=") + stage, "--resume", "none"}));
    const std::vector<double> two = losses("two");
    ASSERT_EQ(two.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], one[i], 1e-5 * one[i]) << stage << ", step " << i + 1;
  }
}

TEST(IntraDocument, EvaluatesAsItTrained) {
  expect_done(train("eval", {kMask, "data.validation=[\"" + paragraphs().path("train.tokens") + "\"]",
                             "training.eval_sequences=100000", "training.steps=60"}));
  double validation = 0;
  std::istringstream lines(read_file(paragraphs().path("eval.jsonl")));
  for (std::string line; std::getline(lines, line);)
    validation = json::parse(line).value("validation_loss", validation);
  const auto loss = [](const std::string& data, std::vector<std::string> more) {
    std::vector<std::string> words{
        "eval",  paragraphs().path("eval"), "--data", paragraphs().path(data), "--device", "cpu", "--seq-len", "32",
        "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Ran r = octet_says(words);
    expect_done(r);
    return r.code ? 0. : json::parse(r.out)["all"]["loss"].get<double>();
  };
  EXPECT_GT(validation, 1);
  EXPECT_NEAR(loss("train.tokens", {}), validation, 1e-6 * validation);
  EXPECT_NEAR(loss("text.jsonl", {"--batch", "3"}), validation, 1e-6 * validation);
  EXPECT_GT(std::fabs(loss("train.tokens", {"data.intra_document_mask=false"}) - validation), 1e-3);
}

TEST(IntraDocument, OtherCommandsTakeItOrSayWhyNot) {
  const std::string config = paragraphs().path("config.json");
  expect_done(octet_says({"plan", config, kMask, "--ranks", "2"}));
  const Ran bench = octet_says({"bench", config, kMask, "training.seq_len=64", "--steps", "2", "--warmup", "1"});
  expect_done(bench, {"tokens_per_second"});
  expect_done(octet_says({"bench", config, kMask, "--ops", "layers"}), {"attention backward"});
  expect_done(train("generate", {kMask}));
  expect_refused(octet_says({"verify", paragraphs().path("generate/step-00000010"), "expected.safetensors", kMask}),
                 {"data.intra_document_mask", "leave it out"});
  const std::vector<std::string> words{
      "generate", paragraphs().path("generate"), "--prompt", "The sea", "--max-new-tokens", "4"};
  expect_done(octet_says(words));
  std::vector<std::string> masked = words;
  masked.push_back(kMask);
  expect_refused(octet_says(masked), {"data.intra_document_mask", "leave it out"});
}

// It was data.document_mask before, and is so in older configs and checkpoints.
TEST(DocumentLossMask, ItsOldNameIsTheSameOption) {
  expect_done(train("old", {"data.document_mask=true", "training.stop_after=5"}));
  const Ran same = train("old", {"data.document_loss_mask=true"});
  expect_done(same, {"step 10/10"});
  EXPECT_FALSE(has(same.err, "data or its order")) << same;
  const Ran other = train("old", {"training.steps=11"});
  EXPECT_TRUE(has(other.err, "data or its order")) << other;
  json config = paragraphs().config();
  config["data"]["document_mask"] = config["data"]["document_loss_mask"] = true;
  paragraphs().write("both.json", config);
  expect_refused(octet_says({"train", paragraphs().path("both.json")}),
                 {"data.document_mask", "data.document_loss_mask", "same option"});

  const std::string state = paragraphs().path("old/step-00000010/state.json");
  json old = json::parse(read_file(state));
  EXPECT_EQ(old["config"]["data"]["document_loss_mask"], true);
  for (const bool value : {true, false}) {
    old["config"]["data"].erase("document_loss_mask");
    old["config"]["data"].erase("intra_document_mask");
    old["config"]["data"]["document_mask"] = value;
    write_file(state, old.dump(2));
    const Ran told = octet_says({"inspect", paragraphs().path("old/step-00000010"), "--quick"});
    expect_done(told);
    EXPECT_EQ(has(told.out, "data.document_mask = true"), value) << told;  // at its default it is not listed
    EXPECT_EQ(has(told.out, "document_mask"), value) << told;
  }
}

}  // namespace
}  // namespace octet
