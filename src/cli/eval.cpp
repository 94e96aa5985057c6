// octet eval: how well a model predicts given text, and how often it chooses the right ending.
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/model_folder.h"
#include "cli/model_run.h"
#include "cli/multiple_choice.h"
#include "cli/ranks.h"
#include "cli/report.h"
#include "data/checkpoints.h"
#include "data/file_names.h"
#include "data/loader.h"
#include "data/token_file.h"
#include "data/tokenize.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "octet-eval-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw SystemError("cannot make a folder in " + fs::temp_directory_path().string());
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

bool is_token_file(const std::string& path) {
  const MappedFile file(path);
  return file.bytes().starts_with(std::string_view(TokenFileHeader::kMagic.data(), TokenFileHeader::kMagic.size()));
}

void evaluate(const ModelRun& run, const EvaluateRequest& request) {
  LoneHost alone;
  run.engine->evaluate(run.config, alone, inference_planner(run.target, /*prompt=*/0), request);
}

struct Text {  // one file of --data
  std::string name;
  TokenFile file;
  int64_t targets = 0;      // tokens that are predicted: all but the first, or of the first sequences only
  double source_bytes = 0;  // of their text; 0: unknown
  double loss = 0;          // sum
  int64_t tokens = 0;       // that have one
  int64_t windows(int64_t T) const { return (targets + T - 1) / T; }
};

// Token files as they are; text and JSONL are tokenized with the model's tokenizer into a temporary folder.
std::vector<Text> open_texts(const Arguments& arguments, const ModelRun& run, const std::string& model,
                             const fs::path& scratch) {
  const int64_t most = arguments.integer("limit", 0, int64_t{1} << 31);
  std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(arguments, model);
  std::vector<Text> texts;
  for (const std::string& name : expand_globs(arguments.all("data"))) {
    std::string tokens = name;
    if (!is_token_file(name)) {
      if (!tokenizer) require_tokenizer(arguments, model);
      if (MappedFile(name).size() == 0) bad_input("'", name, "' is empty: give a file with text");
      tokens = (scratch / concat(texts.size(), ".tokens")).string();
      tokenize(*tokenizer,
               {.inputs = {name},
                .output = tokens,
                .bos = !arguments.has("no-bos"),
                .eos = !arguments.has("no-eos"),
                .documents = {.json_key = arguments.text("json-key"), .separator = arguments.text("separator")},
                .progress = {}});
    }
    Text text{.name = name, .file = TokenFile(tokens)};
    const TokenFileHeader& header = text.file.header();
    if (text.file.tokens() < 2)
      bad_input("'", name, "' holds ", text.file.tokens(), " tokens: there is nothing to predict");
    if (text.file.vocab_size() > run.config.model.vocab_size)
      bad_input("'", name, "' was made for a vocabulary of ", text.file.vocab_size(), "; that of ", model, " is ",
                run.config.model.vocab_size, ": tokenize the text with the model's own tokenizer");
    if (tokenizer && header.tokenizer_fingerprint && header.tokenizer_fingerprint != tokenizer->fingerprint())
      log_warning(name, " was not made with the model's tokenizer: its loss means little");
    const int64_t all = text.file.tokens() - 1;
    text.targets = most ? std::min(all, most * run.config.training.seq_len) : all;
    text.source_bytes = double(header.source_bytes) * double(text.targets) / double(all);
    texts.push_back(std::move(text));
  }
  return texts;
}

// Window i has the tokens from iT on and, as targets, each one's next; a short batch is filled
// up with rows without loss.
void fill_windows(const Text& text, int64_t first, int64_t count, int64_t T, EvaluateRequest::Rows rows) {
  std::fill(rows.tokens.begin(), rows.tokens.end(), 0);
  std::fill(rows.targets.begin(), rows.targets.end(), kIgnore);
  std::vector<int32_t> window;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = (first + i) * T, n = std::min(T, text.targets - begin);
    window.resize(size_t(n + 1));
    text.file.read(begin, window);
    std::copy(window.begin(), window.end() - 1, rows.tokens.begin() + i * T);
    std::copy(window.begin() + 1, window.end(), rows.targets.begin() + i * T);
    if (!rows.begins.empty()) set_bounds(DocumentBounds{rows.begins, rows.ends}.row(i, T), text.file, begin, n);
  }
}

void evaluate_texts(ModelRun& run, const std::string& model, std::vector<Text>& texts) {
  int64_t longest = 0, total = 0, done = 0;
  for (const Text& t : texts) longest = std::max(longest, t.targets);
  const int64_t T = std::min(int64_t(*run.config.training.seq_len), longest);
  for (const Text& t : texts) total += t.windows(T);
  const int64_t B = std::min(int64_t(*run.config.training.micro_batch_size), total);
  run.config.training.seq_len.set(T);
  run.config.training.micro_batch_size.set(B);
  run.config.training.global_batch_size.set(B);
  Progress progress({.what = "evaluating", .total = total, .unit = "sequences"});
  size_t file = 0, asked = 0;
  int64_t at = 0;
  std::vector<int32_t> targets;
  EvaluateRequest request{.model = model, .next = {}, .take = {}};
  request.next = [&](EvaluateRequest::Rows rows) {
    while (file < texts.size() && at == texts[file].windows(T)) ++file, at = 0;
    if (file == texts.size()) return false;
    const int64_t some = std::min(B, texts[file].windows(T) - at);
    fill_windows(texts[file], at, some, T, rows);
    targets.assign(rows.targets.begin(), rows.targets.end());
    asked = file;
    at += some, done += some;
    return true;
  };
  request.take = [&](std::span<const double> losses) {
    for (size_t i = 0; i < losses.size(); ++i) {
      if (targets[i] < 0) continue;
      texts[asked].loss += losses[i];
      ++texts[asked].tokens;
    }
    progress.update(done);
  };
  evaluate(run, request);
}

void evaluate_questions(ModelRun& run, const std::string& model, std::vector<Question>& questions) {
  std::vector<ScoredRow*> rows;
  int64_t longest = 0;
  for (Question& q : questions)
    for (ScoredRow& r : q.rows) {
      rows.push_back(&r);
      longest = std::max(longest, int64_t(r.ids.size()));
    }
  const int64_t B = std::min(int64_t(*run.config.training.micro_batch_size), int64_t(rows.size()));
  const int64_t T = longest - 1;                   // the prediction after the last token is not needed
  run.config.data.intra_document_mask.set(false);  // a row is one document
  run.config.training.seq_len.set(T);
  run.config.training.micro_batch_size.set(B);
  run.config.training.global_batch_size.set(B);
  Progress progress({.what = "scoring", .total = int64_t(rows.size()), .unit = "endings"});
  size_t first = 0, after = 0;
  EvaluateRequest request{.model = model, .next = {}, .take = {}};
  request.next = [&](EvaluateRequest::Rows batch) {
    first = after, after = std::min(rows.size(), first + size_t(B));
    std::fill(batch.tokens.begin(), batch.tokens.end(), 0);
    std::fill(batch.targets.begin(), batch.targets.end(), kIgnore);
    for (size_t i = first; i < after; ++i) {
      const std::vector<int32_t>& ids = rows[i]->ids;
      const int64_t n = int64_t(ids.size()), at = int64_t(i - first) * T;
      std::copy(ids.begin(), ids.end() - 1, batch.tokens.begin() + at);
      for (int64_t t = n - 1 - rows[i]->scored; t < n - 1; ++t) batch.targets[size_t(at + t)] = ids[size_t(t + 1)];
    }
    return first < rows.size();
  };
  request.take = [&](std::span<const double> losses) {
    for (size_t i = first; i < after; ++i)
      for (int64_t t = 0; t < T; ++t) rows[i]->log_probability -= losses[(i - first) * size_t(T) + size_t(t)];
    progress.update(int64_t(after));
  };
  evaluate(run, request);
}

// Whether the model was trained with data.intra_document_mask: its predictions are then of what stands in its document.
bool masks_documents(const fs::path& model) {
  std::error_code none;
  if (!fs::exists(model / "state.json", none)) return false;
  const json state = read_checkpoint_state(model), config = state.value("config", json());
  const json data = config.is_object() ? config.value("data", json()) : json();
  return data.is_object() && data.value("intra_document_mask", json()) == true;
}

json figures_of(const Text& t) {
  const double loss = t.loss / double(std::max<int64_t>(1, t.tokens));
  json f{{"file", t.name}, {"tokens", t.tokens}, {"loss", loss}, {"perplexity", std::exp(loss)}};
  if (t.source_bytes > 0) f["bits_per_byte"] = t.loss / std::log(2.) / t.source_bytes;
  return f;
}

json text_report(const std::vector<Text>& texts) {
  json files = json::array();
  double loss = 0, bytes = 0;
  int64_t tokens = 0;
  bool all_bytes = true;
  for (const Text& t : texts) {
    files.push_back(figures_of(t));
    if (!std::isfinite(t.loss))
      log_warning(t.name,
                  ": the loss is not finite: the model's weights hold NaN or Inf, or values overflow (see --dtype)");
    loss += t.loss, bytes += t.source_bytes, tokens += t.tokens;
    all_bytes = all_bytes && t.source_bytes > 0;
  }
  const double mean = loss / double(std::max<int64_t>(1, tokens));
  json all{{"file", "all"}, {"tokens", tokens}, {"loss", mean}, {"perplexity", std::exp(mean)}};
  if (all_bytes) all["bits_per_byte"] = loss / std::log(2.) / bytes;
  return {{"files", files}, {"all", all}};
}

void print_texts(const json& report) {
  size_t width = 4;
  for (const json& f : report["files"]) width = std::max(width, f["file"].get_ref<const std::string&>().size());
  std::printf("%-*s %14s %10s %12s %10s\n", int(width), "", "tokens", "loss", "perplexity", "bits/byte");
  const auto line = [&](const json& f) {
    std::printf("%-*s %14s %10.4f %12.4f ", int(width), f["file"].get<std::string>().c_str(),
                with_commas(f["tokens"]).c_str(), f["loss"].get<double>(), f["perplexity"].get<double>());
    if (f.contains("bits_per_byte")) std::printf("%10.4f\n", f["bits_per_byte"].get<double>());
    else std::printf("%10s\n", "-");
  };
  for (const json& f : report["files"]) line(f);
  if (report["files"].size() > 1) line(report["all"]);
}

int eval(const Arguments& arguments, Host*) {
  const Words words = split_changes(arguments.words());
  if (words.leading.size() != 1) arguments.refuse("give the folder of one model, followed by --data");
  const std::vector<std::string> quizzes = arguments.all("multiple-choice");
  if (arguments.all("data").empty() && quizzes.empty())
    arguments.refuse("give --data: token files, text or JSONL; or questions with --multiple-choice");
  const std::string model = find_model_folder(words.leading[0]).string();
  ModelRun run = run_of(arguments, model, words.changes);
  constexpr int64_t kLongest = 4096;  // unless asked for
  const int64_t asked = arguments.integer("seq-len", 0), range = run.config.model.max_positions;
  if (asked > range) arguments.refuse(concat("--seq-len ", asked, ": the model takes ", range, " tokens"));
  const int64_t batch = arguments.integer("batch", 1, 1 << 20);
  run.config.training.seq_len.set(asked ? asked : std::min(range, kLongest));
  run.config.training.micro_batch_size.set(batch);
  run.config.training.global_batch_size.set(batch);
  run.config.data.intra_document_mask.default_to(masks_documents(model));

  json report = json::object();
  if (!arguments.all("data").empty()) {
    const TemporaryFolder scratch;
    std::vector<Text> texts = open_texts(arguments, run, model, scratch.path());
    evaluate_texts(run, model, texts);
    report = text_report(texts);
    if (!arguments.has("json")) print_texts(report);
  }
  for (const std::string& quiz : quizzes) {
    std::vector<Question> questions = read_questions(quiz, require_tokenizer(arguments, model), range + 1);
    if (const int64_t most = arguments.integer("limit", 0, int64_t{1} << 31); most && most < int64_t(questions.size()))
      questions.resize(size_t(most));
    for (const Question& q : questions)
      for (const ScoredRow& r : q.rows)
        for (int32_t id : r.ids)
          if (id >= run.config.model.vocab_size)
            bad_input("the tokenizer has more entries than ", model, ", whose vocabulary is ",
                      run.config.model.vocab_size);
    evaluate_questions(run, model, questions);
    const Accuracy a = accuracy_of(questions);
    report["multiple_choice"].push_back(
        {{"file", quiz}, {"questions", a.questions}, {"accuracy", a.plain}, {"accuracy_normalised", a.normalised}});
    if (!arguments.has("json"))
      std::printf("%s: %s questions, accuracy %.4f, normalised by length %.4f\n", quiz.c_str(),
                  with_commas(a.questions).c_str(), a.plain, a.normalised);
  }
  if (arguments.has("json")) print_report(report);
  return 0;
}

}  // namespace

Command eval_command() {
  std::vector<OptionSpec> options{
      {"data", "FILE ...", "token files, text or JSONL; * and ? match many", "", true},
      {"multiple-choice", "FILE ...", "JSONL of questions: {\"ctx\": …, \"endings\": […], \"label\": 0}", "", true},
      {"seq-len", "N", "tokens per sequence (0: the model's maximum, up to 4096)", "0"},
      {"limit", "N", "at most N sequences or questions of each file (0: all)", "0"},
      {"batch", "N", "sequences computed together", "8"},
      {"no-bos", "", "do not begin documents of text with the tokenizer's BOS"},
      {"no-eos", "", "do not end them with its EOS"},
      {"json-key", "KEY", "key of a JSONL line that holds the text", "text"},
      {"separator", "TEXT", "separates the documents of a text file", "<|endoftext|>"},
      {"json", "", "print the figures as JSON"}};
  for (const OptionSpec& o : model_run_options()) options.push_back(o);
  return {.name = "eval",
          .usage = "MODEL --data FILE ... [--multiple-choice FILE ...] [OPTIONS]",
          .summary = "loss, perplexity and bits per byte of text; accuracy on questions",
          .options = options,
          .more =
              "MODEL is a checkpoint, a folder of them (the newest is taken), or a folder saved by transformers.\n"
              "A file is cut into sequences; every token but the first is predicted once, from those before it in\n"
              "its sequence or, with data.intra_document_mask=true (as in a checkpoint trained with it), in its\n"
              "document. Bits per byte refer to the bytes of the text, whatever the tokenizer. The answer to a\n"
              "question is the ending with the largest log-probability after \"ctx \", in total or per character.\n\n"
              "  octet eval out/tiny_llama --data out/data/validation.tokens more.txt\n"
              "  octet eval Llama-2-7b-hf --multiple-choice hellaswag_val.jsonl --batch 32 --json\n",
          .run = eval};
}

}  // namespace octet
