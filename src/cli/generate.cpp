// octet generate: continues prompts.
#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/json.h"
#include "base/progress.h"
#include "cli/model_folder.h"
#include "cli/model_run.h"
#include "cli/ranks.h"
#include "cli/report.h"

namespace octet {
namespace {

std::vector<int32_t> ids_of(const Arguments& arguments, const std::string& option, const std::string& list) {
  std::vector<int32_t> ids;
  for (const char *at = list.data(), *end = at + list.size();;) {
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0 || (next != end && *next != ','))
      arguments.refuse(concat("--", option, " ", list.substr(0, 60), ": expected token ids, for example 1,450,7483"));
    ids.push_back(id);
    if (next == end) return ids;
    at = next + 1;
  }
}

void require_tokens(const char* option, const std::vector<int32_t>& ids, const ModelConfig& model) {
  for (const int32_t id : ids)
    if (id >= model.vocab_size)
      bad_input("--", option, ": ", id, " is not a token of a model with a vocabulary of ", model.vocab_size);
}

double number_in(const Arguments& arguments, const char* option, double least, double most) {
  const double x = arguments.number(option);
  if (!(x >= least && x <= most))
    arguments.refuse(
        concat("--", option, " ", arguments.text(option), ": expected a number from ", least, " to ", most));
  return x;
}

Sampling sampling_of(const Arguments& arguments) {
  Sampling s{.temperature = number_in(arguments, "temperature", 0, 1000),
             .top_k = arguments.integer("top-k", 0),
             .top_p = number_in(arguments, "top-p", 0, 1),
             .penalty = number_in(arguments, "repetition-penalty", 1e-3, 1e3),
             .seed = uint64_t(arguments.integer("seed", 0))};
  for (const char* option : {"top-k", "top-p"})
    if (s.temperature == 0 && arguments.has(option))
      arguments.refuse(
          concat("--", option, " needs a --temperature above 0: without one the most likely token is taken"));
  return s;
}

// Text as it grows: what later tokens may still change (a character of several bytes, a space) is held back. With byte
// fallback that is all of neighbouring bytes: one invalid byte among them makes each U+FFFD.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, std::span<const int32_t> prompt)
      : tokenizer_(tokenizer), ids_(prompt.begin(), prompt.end()) {
    from_ = ids_.size() > kContext ? ids_.size() - kContext : 0;
    known_ = ids_.size();
  }
  std::string add(int32_t id) {
    ids_.push_back(id);
    return rest(false);
  }
  std::string end() { return rest(true); }

 private:
  std::string rest(bool last) {
    if (!last && ids_.back() < tokenizer_.vocab_size() && tokenizer_.kind(ids_.back()) == Tokenizer::Kind::byte)
      return {};
    const std::string before = text(known_), now = text(ids_.size());
    if (now.ends_with("\xef\xbf\xbd") && !last) return {};  // U+FFFD: the bytes of a character so far
    const auto differs = std::mismatch(before.begin(), before.end(), now.begin(), now.end()).second;
    from_ = known_ > kContext ? std::max(from_, known_ - kContext) : from_;
    known_ = ids_.size();
    return {differs, now.end()};
  }
  std::string text(size_t to) const { return tokenizer_.decode({ids_.data() + from_, to - from_}); }
  static constexpr size_t kContext = 8;  // tokens before the new ones: enough to be decoded as in the whole text
  const Tokenizer& tokenizer_;
  std::vector<int> ids_;
  size_t from_ = 0, known_ = 0;
};

struct Prompts {
  std::vector<std::vector<int32_t>> ids;
  std::vector<bool> as_text;  // of each: it was given as text, and so it is shown
};

Prompts prompts_of(const Arguments& arguments, const ModelConfig& model, const std::string& folder) {
  Prompts all;
  if (const auto texts = arguments.all("prompt"); !texts.empty()) {
    const Tokenizer tokenizer = require_tokenizer(arguments, folder);
    if (tokenizer.vocab_size() > model.vocab_size)
      bad_input("the tokenizer has ", tokenizer.vocab_size(), " entries and ", folder, " a vocabulary of ",
                model.vocab_size, "; give the model's own with --tokenizer");
    for (const std::string& text : texts) {
      std::vector<int32_t> ids;
      if (tokenizer.bos() >= 0 && !arguments.has("no-bos")) ids.push_back(tokenizer.bos());
      for (int id : tokenizer.encode(text)) ids.push_back(id);
      all.ids.push_back(std::move(ids));
      all.as_text.push_back(true);
    }
  }
  for (const std::string& list : arguments.all("prompt-ids")) {
    all.ids.push_back(ids_of(arguments, "prompt-ids", list));
    all.as_text.push_back(false);
  }
  if (all.ids.empty()) arguments.refuse("give a --prompt, or token ids with --prompt-ids");
  for (const auto& ids : all.ids) {
    if (ids.empty()) arguments.refuse("the prompt is empty, and this tokenizer has no token that begins a text");
    if (int64_t(ids.size()) >= model.max_positions)
      bad_input("a prompt of ", ids.size(), " tokens leaves no room: the model takes ", model.max_positions,
                " (max_position_embeddings); shorten it");
    require_tokens("prompt-ids", ids, model);
  }
  return all;
}

std::vector<int32_t> stops_of(const Arguments& arguments, const ModelConfig& model, const std::string& folder,
                              const std::vector<std::string>& changes) {
  std::vector<int32_t> stop;
  const auto is_end = [](const std::string& change) { return change.starts_with("model.eos_token_id="); };
  std::vector<int64_t> ends;  // the command line's, else the folder's, else that of the model's config
  if (std::ranges::none_of(changes, is_end) && std::filesystem::is_directory(folder)) ends = end_ids(folder);
  if (ends.empty() && model.eos_id >= 0) ends.push_back(model.eos_id);
  for (const int64_t id : ends)
    if (id >= 0 && id < model.vocab_size && !arguments.has("ignore-eos")) stop.push_back(int32_t(id));
  for (const std::string& list : arguments.all("stop-ids")) {
    const std::vector<int32_t> ids = ids_of(arguments, "stop-ids", list);
    require_tokens("stop-ids", ids, model);
    stop.insert(stop.end(), ids.begin(), ids.end());
  }
  return stop;
}

// Printed output: one prompt's text as it is generated; with several, each text when it has ended, in order.
class Printer {
 public:
  Printer(const Prompts& prompts, const Tokenizer* tokenizer) : prompts_(prompts), output_(prompts.ids.size()) {
    for (size_t i = 0; i < prompts.ids.size(); ++i) {
      const bool as_text = tokenizer && prompts.as_text[i];
      streams_.push_back(as_text ? std::make_unique<TextStream>(*tokenizer, prompts.ids[i]) : nullptr);
    }
  }
  void token(size_t prompt, int32_t id) {
    std::string& out = output_[prompt];
    const std::string more = streams_[prompt] ? streams_[prompt]->add(id) : concat(out.empty() ? "" : ",", id);
    out += more;
    if (output_.size() > 1) return;
    put(more);
    std::fflush(stdout);
  }
  void end() {
    for (size_t i = 0; i < output_.size(); ++i) {
      const std::string last = streams_[i] ? streams_[i]->end() : "";
      if (output_.size() > 1) put(concat("[", i + 1, "] ", output_[i]));
      put(last + "\n");
    }
    std::fflush(stdout);  // the speed goes to standard error
  }

 private:
  static void put(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }  // zero bytes too
  const Prompts& prompts_;
  std::vector<std::string> output_;
  std::vector<std::unique_ptr<TextStream>> streams_;
};

double rate(int64_t tokens, double seconds) { return seconds > 0 ? double(tokens) / seconds : 0; }

json report_of(const Prompts& prompts, const GenerateResult& result, const Tokenizer* tokenizer) {
  json sequences = json::array();
  for (size_t i = 0; i < prompts.ids.size(); ++i) {
    const auto& s = result.sequences[i];
    json one{{"prompt_ids", prompts.ids[i]}, {"ids", s.tokens}};
    if (tokenizer) {
      TextStream stream(*tokenizer, prompts.ids[i]);
      std::string text;
      for (int32_t id : s.tokens) text += stream.add(id);
      one["text"] = text + stream.end();
    }
    using End = GenerateResult::End;
    one["end"] = s.end == End::stop ? "stop" : s.end == End::length ? "length" : "positions";
    sequences.push_back(std::move(one));
  }
  const auto speed = [](int64_t tokens, double seconds) {
    return json{{"tokens", tokens}, {"seconds", seconds}, {"tokens_per_second", rate(tokens, seconds)}};
  };
  return {{"sequences", sequences},
          {"prefill", speed(result.prefill_tokens, result.prefill_seconds)},
          {"decode", speed(result.decode_tokens, result.decode_seconds)},
          {"device", result.device}};
}

int generate(const Arguments& arguments, Host*) {
  const Words words = split_changes(arguments.words());
  if (words.leading.size() != 1) arguments.refuse("give the folder of one model, followed by --prompt");
  const bool random = arguments.has("random-init");
  const std::string folder = random ? words.leading[0] : find_model_folder(words.leading[0]).string();
  ModelRun run = run_of(arguments, folder, words.changes);
  if (run.config.data.intra_document_mask)
    bad_input("data.intra_document_mask: a prompt and what follows it are one document; leave it out");
  const ModelConfig& model = run.config.model;
  const Prompts prompts = prompts_of(arguments, model, folder);
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(arguments, folder);
  GenerateRequest request{.model = random ? "" : folder,
                          .prompts = prompts.ids,
                          .max_new_tokens = arguments.integer("max-new-tokens", 1),
                          .stop = stops_of(arguments, model, folder, words.changes),
                          .sampling = sampling_of(arguments),
                          .on_token = {}};
  size_t longest = 0, shortest = prompts.ids[0].size();
  for (const auto& ids : prompts.ids)
    longest = std::max(longest, ids.size()), shortest = std::min(shortest, ids.size());
  // Positions for the longest prompt and what is added to the shortest: a batch runs until its last sequence ends.
  const int64_t added = std::min(request.max_new_tokens, model.max_positions - int64_t(shortest));
  const int64_t batch = std::min(arguments.integer("batch", 1), int64_t(prompts.ids.size()));
  run.config.training.seq_len.set(int64_t(longest) + added);
  run.config.training.micro_batch_size.set(batch);
  run.config.training.global_batch_size.set(batch);

  Printer printer(prompts, tokenizer.get());
  const bool as_json = arguments.has("json");
  if (!as_json) request.on_token = [&](size_t prompt, int32_t id) { printer.token(prompt, id); };
  LoneHost alone;
  const GenerateResult result =
      run.engine->generate(run.config, alone, inference_planner(run.target, int64_t(longest)), request);
  if (as_json) {
    print_report(report_of(prompts, result, tokenizer.get()));
    return 0;
  }
  printer.end();
  std::fprintf(stderr, "prompts: %s tokens, %.1f a second; generated after them: %s tokens, %.1f a second; %s\n",
               with_commas(result.prefill_tokens).c_str(), rate(result.prefill_tokens, result.prefill_seconds),
               with_commas(result.decode_tokens).c_str(), rate(result.decode_tokens, result.decode_seconds),
               result.device.c_str());
  return 0;
}

}  // namespace

Command generate_command() {
  std::vector<OptionSpec> options{
      {"prompt", "TEXT ...", "text to continue; several are computed together", "", true},
      {"prompt-ids", "ID,ID ...", "a prompt as token ids, used exactly as given", "", true},
      {"max-new-tokens", "N", "at most N new tokens per sequence", "128"},
      {"temperature", "X", "0: always the most likely token; 1: sample by the model's probabilities", "0"},
      {"top-k", "K", "sample from the K most likely tokens only (0: all)", "0"},
      {"top-p", "P", "sample from the most likely tokens whose probabilities add up to P", "1"},
      {"repetition-penalty", "X", "above 1: tokens that have occurred become less likely", "1"},
      {"seed", "N", "seed of the sampling: the same seed gives the same text", "0"},
      {"stop-ids", "ID,ID ...", "also stop after any of these tokens, not only at the model's end of text", "", true},
      {"ignore-eos", "", "continue past the model's end of text"},
      {"no-bos", "", "do not begin text prompts with the tokenizer's BOS"},
      {"batch", "N", "prompts computed together", "32"},
      {"random-init", "", "random weights, to measure speed: MODEL is a run's config, or a config.json"},
      {"json", "", "print ids, texts and speed as JSON"}};
  for (const OptionSpec& o : model_run_options()) options.push_back(o);
  return {.name = "generate",
          .usage = "MODEL --prompt TEXT ... [OPTIONS]",
          .summary = "continue a text with a model",
          .options = options,
          .more =
              "MODEL is a checkpoint, a folder of them (the newest is taken), or a folder saved by transformers.\n"
              "With one prompt, text is printed as it is generated; with several, when all have ended. The speed\n"
              "follows on standard error.\n"
              "\n"
              "  octet generate out/tiny_llama --prompt \"Once upon a time\"\n"
              "  octet generate out/tiny_llama --prompt \"The first\" \"The second\" --temperature 0.8 --top-p 0.95 "
              "--seed 7\n"
              "  octet generate Llama-2-7b-hf --prompt-ids 1,450,7483 --max-new-tokens 20 --json\n",
          .run = generate};
}

}  // namespace octet
