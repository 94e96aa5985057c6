// octet eval as a user types it: losses are those that transformers' logits give, bits per byte and totals are sums,
// and the answers to questions are those that its losses of single tokens give by hand.
#include <cmath>

#include "cli/chain_model.h"
#include "cli/tiny_run.h"
#include "data/safetensors.h"
#include "data/token_file.h"
#include "data/tokenizer.h"
#include "golden.h"
#include "host/engine.h"

namespace octet {
namespace {

std::vector<std::string> eval(const std::string& model, std::vector<std::string> more) {
  std::vector<std::string> words{OCTET_BINARY, "eval", model, "--device", "cpu"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
Ran says(const std::string& model, std::vector<std::string> more) { return run(eval(model, std::move(more))); }
json report(const std::string& model, std::vector<std::string> more) {
  more.push_back("--json");
  const Ran r = says(model, std::move(more));
  expect_done(r);
  return r.code == 0 ? json::parse(r.out) : json();
}

void write_tokens(const std::string& path, const std::vector<int32_t>& ids, int64_t vocabulary, int64_t source_bytes) {
  TokenFileHeader like;
  like.vocab_size = uint64_t(vocabulary);
  TokenFileWriter writer(path, like);
  writer.begin_document();
  writer.append(ids);
  writer.add_source_bytes(source_bytes);
  writer.finish();
}

// The mean loss of each token of the golden batch's first sequence behind those before it, by transformers' logits.
struct Golden {
  std::vector<int32_t> ids;
  double loss = 0;
};
Golden golden_of(const std::string& model) {
  const SafetensorsFile file(golden(model + "/expected.safetensors"));
  const size_t T = size_t(file.at("input_ids").shape[1]), V = size_t(file.at("logits").shape[2]);
  const std::vector<int32_t> ids = file.read_all<int32_t>("input_ids");
  const std::vector<double> logits = file.read_all<double>("logits");
  Golden g{.ids = {ids.begin(), ids.begin() + ptrdiff_t(T)}};
  for (size_t t = 0; t + 1 < T; ++t) {
    double sum = 0;
    for (size_t v = 0; v < V; ++v) sum += std::exp(logits[t * V + v]);
    g.loss += (std::log(sum) - logits[t * V + size_t(ids[t + 1])]) / double(T - 1);
  }
  return g;
}

TEST(EvalFolder, LossIsThatOfTransformersLogits) {
  const Scratch folder;
  for (const std::string model :
       {"llama-mha", "llama-gqa", "llama-tied", "neox-parallel", "neox-sequential", "mixtral-8x2", "mixtral-4x1"}) {
    const Golden g = golden_of(model);
    write_tokens(folder / "a.tokens", g.ids, 128, 77);
    const json r = report(golden(model), {"--data", folder / "a.tokens"});
    const double n = double(g.ids.size() - 1);
    EXPECT_EQ(r["all"]["tokens"], n);
    EXPECT_NEAR(r["all"]["loss"], g.loss, 1e-5 * g.loss) << model;
    EXPECT_NEAR(r["all"]["perplexity"], std::exp(g.loss), 1e-4 * std::exp(g.loss));
    EXPECT_NEAR(r["all"]["bits_per_byte"], g.loss * n / std::log(2.) / 77, 1e-4);
    const json half = report(golden(model), {"--data", folder / "a.tokens", "--dtype", "bf16"});
    EXPECT_NEAR(half["all"]["loss"], g.loss, 1e-2 * g.loss) << model;
  }
}

using Eval = TrainedRun;

TEST_F(Eval, TextAndItsTokenFileAreTheSame) {
  const json tokens = report(path("run"), {"--data", path("train.tokens"), "--seq-len", "32"});
  const json text = report(path("run/step-00000010"), {"--data", small_text(), "--seq-len", "32"});
  for (const char* key : {"tokens", "loss", "perplexity", "bits_per_byte"})
    EXPECT_EQ(tokens["all"][key], text["all"][key]) << key;
  EXPECT_EQ(tokens["all"]["tokens"].get<int64_t>(), TokenFile(path("train.tokens")).tokens() - 1);
  const double bytes = double(std::filesystem::file_size(small_text()));
  EXPECT_NEAR(tokens["all"]["bits_per_byte"].get<double>(),
              tokens["all"]["loss"].get<double>() * tokens["all"]["tokens"].get<double>() / std::log(2.) / bytes, 0.02);
  const Ran table = says(path("run"), {"--data", path("train.tokens")});
  expect_done(table, {"perplexity", "bits/byte", "train.tokens"});
}

TEST_F(Eval, TotalsAreSumsAndBatchesChangeNothing) {
  const std::string text = read_file(small_text());
  write_file(path("part.txt"), text.substr(0, 3000));
  write_file(path("part.jsonl"), json{{"body", text.substr(3000, 1000)}}.dump() + "\n");
  const std::vector<std::string> data{"--data", path("part.txt"), path("part.jsonl"), "--json-key", "body", "--seq-len",
                                      "32"};
  const json r = report(path("run"), data);
  ASSERT_EQ(r["files"].size(), 2u);
  double loss = 0, tokens = 0, bytes = 0;
  for (const json& f : r["files"]) {
    const double sum = f["loss"].get<double>() * f["tokens"].get<double>();
    loss += sum, tokens += f["tokens"].get<double>();
    bytes += sum / std::log(2.) / f["bits_per_byte"].get<double>();
  }
  EXPECT_NEAR(r["all"]["loss"], loss / tokens, 1e-12);
  EXPECT_NEAR(r["all"]["bits_per_byte"], loss / std::log(2.) / bytes, 1e-12);
  EXPECT_NEAR(bytes, 4000, 1e-6);
  for (const char* batch : {"1", "5"}) {
    std::vector<std::string> more = data;
    more.insert(more.end(), {"--batch", batch});
    EXPECT_NEAR(report(path("run"), more)["all"]["loss"], r["all"]["loss"], 1e-6);
  }
  std::vector<std::string> limited = data;
  limited.insert(limited.end(), {"--limit", "2"});
  EXPECT_EQ(report(path("run"), limited)["all"]["tokens"], 128);
}

// Losses of each token of a row but the first, from the engine by itself.
std::vector<double> token_losses(const std::string& model, const std::vector<int32_t>& ids) {
  RunConfig config = parse_config(json{{"model", {{"config", model}}}, {"checkpoint", {{"dir", ""}}}}.dump(), "test",
                                  {"device=cpu", "precision.param_dtype=fp32", "training.global_batch_size=1",
                                   concat("training.seq_len=", ids.size() - 1)});
  std::vector<double> losses;
  bool asked = false;
  EvaluateRequest request{.model = model, .next = {}, .take = {}};
  request.next = [&](EvaluateRequest::Rows rows) {
    std::copy(ids.begin(), ids.end() - 1, rows.tokens.begin());
    std::copy(ids.begin() + 1, ids.end(), rows.targets.begin());
    return !std::exchange(asked, true);
  };
  request.take = [&](std::span<const double> l) { losses.assign(l.begin(), l.end()); };
  LoneHost host;
  cpu::engine().evaluate(
      config, host, [](const RunConfig& c) { return plan::engine().plan_inference(c, Target{}, 0); }, request);
  return losses;
}

struct Choice {
  size_t plain = 0, normalised = 0;
};
Choice by_hand(const Tokenizer& tokenizer, const std::string& model, const std::string& context,
               const std::vector<std::string>& endings) {
  Choice best;
  double plain = -INFINITY, normalised = -INFINITY;
  for (size_t i = 0; i < endings.size(); ++i) {
    std::vector<int32_t> ids{tokenizer.bos()};
    for (int id : tokenizer.encode(context)) ids.push_back(id);
    const size_t before = ids.size();
    ids.resize(1);
    for (int id : tokenizer.encode(context + " " + endings[i])) ids.push_back(id);
    const std::vector<double> losses = token_losses(model, ids);
    double score = 0;
    for (size_t t = before; t < ids.size(); ++t) score -= losses[t - 1];
    if (score > plain) plain = score, best.plain = i;
    if (score / double(endings[i].size()) > normalised)
      normalised = score / double(endings[i].size()), best.normalised = i;
  }
  return best;
}

TEST_F(Eval, AnswersAreThoseComputedByHand) {
  const Tokenizer tokenizer(path("tokenizer.model"));
  const std::string model = path("run/step-00000010");
  const std::vector<std::pair<std::string, std::vector<std::string>>> questions{
      {"The cat sat on", {"the mat.", "a very long and winding road that nobody had ever walked.", "xqz", "it"}},
      {"Once there was", {"a", "an old man who lived by the sea and told stories", "zzzz zz", "the"}},
      {"She opened the door and",
       {"ran", "went out into the garden to look for the small grey dog", "q", "then, then, then"}},
      {"Water is", {"wet and cold", "the", "vvvvv"}}};
  std::string lines;
  double plain = 0, normalised = 0;
  bool differ = false;
  for (size_t i = 0; i < questions.size(); ++i) {
    const auto& [context, endings] = questions[i];
    const Choice c = by_hand(tokenizer, model, context, endings);
    differ = differ || c.plain != c.normalised;
    const size_t label = i % 2 ? c.plain : c.normalised;
    plain += c.plain == label, normalised += c.normalised == label;
    json q{{"ctx", context}, {"endings", endings}, {"activity_label", "not read"}};
    if (i == 2) q["label"] = std::to_string(label);
    else q["label"] = label;
    lines += q.dump() + "\n";
  }
  EXPECT_TRUE(differ);  // else the two accuracies would be one
  write_file(path("quiz.jsonl"), lines);
  for (const char* batch : {"8", "3"}) {
    const json r = report(model, {"--multiple-choice", path("quiz.jsonl"), "--batch", batch})["multiple_choice"][0];
    EXPECT_EQ(r["questions"], 4);
    EXPECT_EQ(r["accuracy"], plain / 4);
    EXPECT_EQ(r["accuracy_normalised"], normalised / 4);
  }
  expect_done(says(model, {"--multiple-choice", path("quiz.jsonl"), "--limit", "2"}), {"2 questions", "accuracy"});
}

TEST_F(Eval, RefusesWhatIsWrong) {
  const std::string model = path("run"), tokens = path("train.tokens"), other = golden("llama-gqa");
  expect_refused(says(model, {}), {"--data"});
  expect_refused(says("no/such", {"--data", tokens}), {"no/such"});
  expect_refused(says(model, {"--data", "no/such.tokens"}), {"no/such.tokens"});
  expect_refused(says(other, {"--data", tokens}), {"train.tokens", "128"});
  expect_refused(says(other, {"--data", small_text()}), {"tokenizer.model", "--tokenizer"});
  const std::string bytes = read_file(tokens);
  write_file(path("cut.tokens"), bytes.substr(0, bytes.size() / 2));
  expect_refused(says(model, {"--data", path("cut.tokens")}), {"cut.tokens"});
  write_file(path("empty.txt"), "");
  expect_refused(says(model, {"--data", path("empty.txt")}), {"empty"});
  expect_refused(says(model, {"--data", tokens, "--seq-len", "65"}), {"--seq-len", "64"});
  for (const std::string& line : {std::string("{"), std::string("[]"), std::string(R"({"ctx": "a"})"),
                                  std::string(R"({"ctx": 1, "endings": ["a"], "label": 0})"),
                                  std::string(R"({"ctx": "a", "endings": [], "label": 0})"),
                                  std::string(R"({"ctx": "a", "endings": ["b"], "label": 1})"),
                                  std::string(R"({"ctx": "a", "endings": ["b"], "label": "x"})")}) {
    write_file(path("bad.jsonl"), "\n" + line + "\n");
    expect_refused(says(model, {"--multiple-choice", path("bad.jsonl")}), {"bad.jsonl", "line 2"});
  }
  write_file(path("bad.jsonl"), R"({"ctx": "a", "endings": ["b", ""], "label": 0})");
  expect_refused(says(model, {"--multiple-choice", path("bad.jsonl")}), {"line 1", "none empty"});
  write_file(path("none.jsonl"), "\n");
  expect_refused(says(model, {"--multiple-choice", path("none.jsonl")}), {"none.jsonl", "no questions"});
  expect_refused(says(model, {"--multiple-choice", tokens}), {"train.tokens", ".jsonl"});
  expect_refused(says(model, {"--data", tokens, "fp8.enabled=true"}), {"fp8.enabled"});
}

}  // namespace
TEST(EvalFolder, ALossThatIsNoNumberIsWarnedOf) {
  const Scratch folder;
  const std::string tokens = token_file(folder / "t.tokens", 100, 40);
  const auto eval = [&](float factor) {
    const Scratch other;
    return octet_says({"eval", chain_model(other, {5, 6, 7}, 40, factor), "--data", tokens, "--device", "cpu"});
  };
  const Ran r = eval(NAN);
  expect_done(r, {"nan"});
  EXPECT_TRUE(has(r.err, "t.tokens: the loss is not finite")) << r;
  EXPECT_FALSE(has(eval(1).err, "finite"));
}

}  // namespace octet
