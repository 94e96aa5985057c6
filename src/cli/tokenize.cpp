// octet tokenize: text and JSONL to a token file, and with --decode back.
#include "data/tokenize.h"

#include <cstdio>
#include <memory>
#include <optional>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/report.h"
#include "data/detokenize.h"
#include "data/file_names.h"

namespace octet {
namespace {

auto shown(std::unique_ptr<Progress>& progress, const char* what, const char* unit) {
  return [&progress, what, unit](int64_t done, int64_t total) {
    if (!progress) progress = std::make_unique<Progress>(ProgressSetup{.what = what, .total = total, .unit = unit});
    progress->update(done);
  };
}

int encode(const Arguments& arguments, TokenizeOptions options) {
  if (options.output.empty())
    arguments.refuse("--out is missing: give the name of the token file, for example train.tokens");
  options.threads = int(arguments.integer("threads", 0, 1024));
  options.bos = !arguments.has("no-bos");
  options.eos = !arguments.has("no-eos");
  std::unique_ptr<Progress> progress;
  options.progress = shown(progress, "tokenizing", "B");
  const TokenFileHeader made = tokenize(Tokenizer(arguments.text("tokenizer")), options);
  if (progress) progress->finish();
  if (arguments.has("json")) {
    const json report{{"out", options.output.string()},
                      {"tokens", made.tokens},
                      {"documents", made.documents},
                      {"source_bytes", made.source_bytes},
                      {"vocab_size", made.vocab_size}};
    print_report(report);
    return 0;
  }
  std::printf("%s: %s tokens of %s documents, %.2f bytes a token, vocabulary %s\n", options.output.c_str(),
              with_commas(int64_t(made.tokens)).c_str(), with_commas(int64_t(made.documents)).c_str(),
              double(made.source_bytes) / double(std::max<uint64_t>(made.tokens, 1)),
              with_commas(int64_t(made.vocab_size)).c_str());
  return 0;
}

int decode(const Arguments& arguments, const TokenizeOptions& from) {
  for (const char* option : {"no-bos", "no-eos", "threads"})
    if (arguments.has(option)) arguments.refuse(concat("--", option, " cannot be combined with --decode"));
  const bool to_file = !from.output.empty();
  if (!to_file && arguments.has("json"))
    arguments.refuse("--json with --decode needs --out: otherwise the text is printed");
  const std::string extension = from.output.extension().string();
  DetokenizeOptions options{.inputs = from.inputs,
                            .jsonl = extension == ".jsonl" || extension == ".ndjson",
                            .json_key = from.documents.json_key,
                            .separator = from.documents.separator};
  std::unique_ptr<Progress> progress;
  if (to_file) options.progress = shown(progress, "decoding", "tokens");
  const Tokenizer tokenizer(arguments.text("tokenizer"));
  if (to_file) keep_inputs(from.output, expand_globs(from.inputs));
  std::optional<FileWriter> file;
  const Detokenized made = detokenize(tokenizer, options, [&](std::string_view text) {
    if (to_file && !file) file.emplace(from.output);
    if (to_file) file->write(text);
    else std::fwrite(text.data(), 1, text.size(), stdout);  // main() looks whether it was written
  });
  if (file) file->commit();
  if (progress) progress->finish();
  if (made.ambiguous)
    log_warning(made.ambiguous, " documents contain the separator ", options.separator,
                " or have a newline next to it, and will be read otherwise: write NAME.jsonl");
  if (!to_file) return 0;
  if (arguments.has("json")) {
    const json report{{"out", from.output.string()}, {"documents", made.documents}, {"bytes", made.bytes}};
    print_report(report);
  } else {
    std::printf("%s: %s documents, %s of text\n", from.output.c_str(), with_commas(made.documents).c_str(),
                human_bytes(double(made.bytes)).c_str());
  }
  return 0;
}

int run_tokenize(const Arguments& arguments, Host*) {
  arguments.expect_words(0, 0);
  TokenizeOptions options{.inputs = arguments.all("input"), .output = arguments.text("out")};
  if (!arguments.has("tokenizer"))
    arguments.refuse("--tokenizer is missing: give a tokenizer.model or a tokenizer.json");
  if (options.inputs.empty())
    arguments.refuse(concat("--input is missing: give files with ", arguments.has("decode") ? "tokens" : "text"));
  keep_inputs(options.output, {arguments.text("tokenizer")});
  options.documents.json_key = arguments.text("json-key");
  options.documents.separator = arguments.text("separator");
  return arguments.has("decode") ? decode(arguments, options) : encode(arguments, options);
}

}  // namespace

Command tokenize_command() {
  return {
      .name = "tokenize",
      .usage = "--tokenizer tokenizer.model --input FILE ... --out FILE.tokens [OPTIONS]",
      .summary = "convert text and JSONL to a token file, or back",
      .options = {{"tokenizer", "PATH", "a sentencepiece model, Hugging Face's tokenizer.json, or a folder with one"},
                  {"input", "FILE ...", "text or JSONL (.jsonl, .ndjson, .json) files; * and ? match many", "", true},
                  {"out", "PATH", "the token file to write"},
                  {"decode", "", "the reverse: --input token files, --out text or .jsonl (default: print)"},
                  {"threads", "N", "0: as many as the machine has", "0"},
                  {"no-bos", "", "do not begin documents with the tokenizer's BOS"},
                  {"no-eos", "", "do not end documents with its EOS"},
                  {"json-key", "KEY", "key of a JSONL line that holds the text", "text"},
                  {"separator", "TEXT", "separates the documents of a text file", "<|endoftext|>"},
                  {"json", "", "print what was written as JSON"}},
      .more =
          "  octet tokenize --tokenizer tokenizer.model --input text/*.txt more.jsonl --out train.tokens\n"
          "  octet tokenize --tokenizer pythia-160m/tokenizer.json --input more.jsonl --out train.tokens\n"
          "  octet tokenize --decode --tokenizer tokenizer.model --input train.tokens --out back.jsonl\n"
          "  octet tokenize --decode --tokenizer tokenizer.model --input train.tokens | head\n",
      .run = run_tokenize};
}

}  // namespace octet
