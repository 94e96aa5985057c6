// octet tokenize: text and JSONL to a token file.
#include "data/tokenize.h"

#include <cstdio>
#include <memory>

#include "base/progress.h"
#include "cli/command.h"

namespace octet {
namespace {

int run_tokenize(const Arguments& arguments, Host*) {
  arguments.expect_words(0, 0);
  TokenizeOptions options{.inputs = arguments.all("input"), .output = arguments.text("out")};
  if (!arguments.has("tokenizer")) arguments.refuse("--tokenizer is missing: give a tokenizer.model");
  if (options.inputs.empty()) arguments.refuse("--input is missing: give files with text");
  if (options.output.empty())
    arguments.refuse("--out is missing: give the name of the token file, for example train.tokens");
  options.threads = int(std::min<int64_t>(arguments.integer("threads", 0), 4096));
  options.bos = !arguments.has("no-bos");
  options.eos = !arguments.has("no-eos");
  options.documents.json_key = arguments.text("json-key");
  options.documents.separator = arguments.text("separator");
  std::unique_ptr<Progress> progress;
  options.progress = [&](int64_t done, int64_t total) {
    if (!progress)
      progress = std::make_unique<Progress>(ProgressSetup{.what = "tokenizing", .total = total, .unit = "B"});
    progress->update(done);
  };
  const TokenFileHeader made = tokenize(Tokenizer(arguments.text("tokenizer")), options);
  if (progress) progress->finish();
  std::printf("%s: %s tokens of %s documents, %.2f bytes a token, vocabulary %s\n", options.output.c_str(),
              with_commas(int64_t(made.tokens)).c_str(), with_commas(int64_t(made.documents)).c_str(),
              double(made.source_bytes) / double(std::max<uint64_t>(made.tokens, 1)),
              with_commas(int64_t(made.vocab_size)).c_str());
  return 0;
}

}  // namespace

Command tokenize_command() {
  return {
      .name = "tokenize",
      .usage = "--tokenizer tokenizer.model --input FILE ... --out FILE.tokens [OPTIONS]",
      .summary = "turn text and JSONL into a token file",
      .options = {{"tokenizer", "PATH", "a sentencepiece model"},
                  {"input", "FILE ...", "text or JSONL (.jsonl, .ndjson, .json) files; * and ? match many", "", true},
                  {"out", "PATH", "the token file to write"},
                  {"threads", "N", "0: as many as the machine has", "0"},
                  {"no-bos", "", "documents do not begin with the tokenizer's BOS"},
                  {"no-eos", "", "documents do not end with its EOS"},
                  {"json-key", "KEY", "key of a JSONL line that holds the text", "text"},
                  {"separator", "TEXT", "stands between the documents of a text file", "<|endoftext|>"}},
      .more = "  octet tokenize --tokenizer tokenizer.model --input text/*.txt more.jsonl --out train.tokens\n",
      .run = run_tokenize};
}

}  // namespace octet
