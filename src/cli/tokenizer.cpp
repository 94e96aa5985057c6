// octet tokenizer: trains a tokenizer on text.
#include "data/tokenizer.h"

#include <cstdio>

#include "base/json.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/report.h"

namespace octet {
namespace {

int tokenizer(const Arguments& arguments, Host*) {
  arguments.expect_words(0, 0);
  TrainTokenizerOptions options{.inputs = arguments.all("input"), .output = arguments.text("out")};
  if (options.inputs.empty()) arguments.refuse("--input is missing: give files with text");
  if (options.output.empty())
    arguments.refuse("--out is missing: give the name of the tokenizer, for example tokenizer.model");
  options.vocab_size = int(arguments.integer("vocab-size", 1, 1'000'000));
  options.character_coverage = arguments.number("character-coverage");
  if (!(options.character_coverage >= kLeastCoverage && options.character_coverage <= 1))
    arguments.refuse(concat("--character-coverage ", arguments.text("character-coverage"), ": expected a number from ",
                            kLeastCoverage, " to 1"));
  options.max_bytes = arguments.integer("max-megabytes", 1, 1 << 24) << 20;
  options.documents.json_key = arguments.text("json-key");
  options.documents.separator = arguments.text("separator");
  train_tokenizer(options);
  const Tokenizer made(options.output);
  if (arguments.has("json")) {
    const json report{{"out", options.output.string()},
                      {"vocab_size", made.vocab_size()},
                      {"bos_id", made.bos()},
                      {"eos_id", made.eos()}};
    print_report(report);
    return 0;
  }
  std::printf("%s: %s entries\n", options.output.c_str(), with_commas(made.vocab_size()).c_str());
  return 0;
}

}  // namespace

Command tokenizer_command() {
  return {.name = "tokenizer",
          .usage = "--input FILE ... --out tokenizer.model [OPTIONS]",
          .summary = "train a tokenizer on text",
          .options = {{"input", "FILE ...", "text or JSONL files; * and ? match many", "", true},
                      {"out", "PATH", "the sentencepiece model to write"},
                      {"vocab-size", "N", "entries of the vocabulary", "32000"},
                      {"character-coverage", "X", "share of the characters with an entry of their own", "0.99995"},
                      {"max-megabytes", "N", "text to learn from; larger input is sampled", "256"},
                      {"json-key", "KEY", "key of a JSONL line that holds the text", "text"},
                      {"separator", "TEXT", "separates the documents of a text file", "<|endoftext|>"},
                      {"json", "", "print what was written as JSON"}},
          .more =
              "Byte-pair encoding with byte fallback, like Llama-2's. Llama-2's own tokenizer.model works as well.\n"
              "\n"
              "  octet tokenizer --input text/*.txt --vocab-size 8000 --out tokenizer.model\n",
          .run = tokenizer};
}

}  // namespace octet
