// octet convert: token files of other programs to octet's.
#include <cstdio>
#include <memory>

#include "base/files.h"
#include "base/json.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/report.h"
#include "data/convert_tokens.h"
#include "data/tokenizer.h"

namespace octet {
namespace {

// Where documents begin: by Megatron's index, or by ids that the user states.
void read_marks(const Arguments& arguments, ConvertOptions& options) {
  const bool bos = arguments.has("bos-id"), eos = arguments.has("eos-id"), unmarked = arguments.has("unmarked");
  if (options.format == "megatron" && unmarked)
    arguments.refuse("--unmarked: Megatron's index says where documents begin");
  if (options.format != "megatron" && int(bos || eos) + int(unmarked) != 1)
    arguments.refuse(
        "where do documents begin? Give --bos-id with the id that begins each one (llm.c's GPT-2 files: 50256, its "
        "Llama 3 files: 128000),\n--eos-id with the one that ends it (nanoGPT's GPT-2 files: 50256, Llama 2: 2), both, "
        "or --unmarked alone if each file is one document");
  const int64_t last = (options.vocab_size > 0 ? options.vocab_size : INT32_MAX) - 1;
  if (bos) options.bos = int32_t(arguments.integer("bos-id", 0, last));
  if (eos) options.eos = int32_t(arguments.integer("eos-id", 0, last));
  if (bos && eos && options.bos == options.eos && options.format != "megatron")
    arguments.refuse("--bos-id and --eos-id are the same: which is it, the first of a document or its last? Give one");
  options.marked = !unmarked;
}

int convert(const Arguments& arguments, Host*) {
  arguments.expect_words(0, 0);
  ConvertOptions options{
      .format = arguments.text("from"), .inputs = arguments.all("input"), .output = arguments.text("out")};
  if (options.format.empty()) arguments.refuse("--from is missing: give the format, for example llm.c");
  if (options.inputs.empty()) arguments.refuse("--input is missing: give files with tokens");
  if (options.output.empty())
    arguments.refuse("--out is missing: give the name of the token file, for example train.tokens");
  if (arguments.has("tokenizer")) {
    if (arguments.has("vocab-size")) arguments.refuse("--tokenizer brings its vocabulary: give it or --vocab-size");
    keep_inputs(options.output, {arguments.text("tokenizer")});
    const Tokenizer tokenizer(arguments.text("tokenizer"));
    options.vocab_size = tokenizer.vocab_size();
    options.tokenizer_fingerprint = tokenizer.fingerprint();
  } else if (arguments.has("vocab-size")) {
    options.vocab_size = arguments.integer("vocab-size", 1, INT32_MAX);
  }
  read_marks(arguments, options);
  std::unique_ptr<Progress> progress;
  options.progress = [&](int64_t done, int64_t total) {
    if (!progress)
      progress = std::make_unique<Progress>(ProgressSetup{.what = "converting", .total = total, .unit = "B"});
    progress->update(done);
  };
  const TokenFileHeader made = convert_tokens(options);
  if (progress) progress->finish();
  if (arguments.has("json")) {
    const json report{{"out", options.output.string()},
                      {"tokens", made.tokens},
                      {"documents", made.documents},
                      {"vocab_size", made.vocab_size}};
    print_report(report);
    return 0;
  }
  std::printf("%s: %s tokens of %s documents, vocabulary %s\n", options.output.c_str(),
              with_commas(int64_t(made.tokens)).c_str(), with_commas(int64_t(made.documents)).c_str(),
              with_commas(int64_t(made.vocab_size)).c_str());
  return 0;
}

}  // namespace

Command convert_command() {
  return {
      .name = "convert",
      .usage = "--from FORMAT --input FILE ... --out FILE.tokens [OPTIONS]",
      .summary = "convert token files of llm.c, llm.q, Megatron-LM or nanoGPT to octet's",
      .options = {{"from", "FORMAT",
                   "llm.c, llm.q, megatron, npy; an array of ids alone: uint16, uint32, int32, int64"},
                  {"input", "FILE ...",
                   "token files to read; * and ? match many. megatron: NAME.bin, with NAME.idx next to it", "", true},
                  {"out", "PATH", "the token file to write"},
                  {"vocab-size", "N", "entries of the ids' vocabulary (llm.q: as its files say)"},
                  {"tokenizer", "PATH", "instead: the tokenizer that made the ids, noted in the token file"},
                  {"bos-id", "ID", "a document begins with each of these (megatron: its index says where)"},
                  {"eos-id", "ID", "a document ends with each of these"},
                  {"unmarked", "", "no such ids: each file is one document"},
                  {"json", "", "print what was written as JSON"}},
      .more =
          "The files are read as one stream, in the order given: a document may go on in the next one.\n\n"
          "  octet convert --from llm.c --input fineweb10B/*_train_*.bin --vocab-size 50257 --bos-id 50256 --out "
          "train.tokens\n"
          "  octet convert --from megatron --input corpus_text_document.bin --vocab-size 50304 --out train.tokens\n"
          "  octet convert --from uint16 --input openwebtext/train.bin --vocab-size 50257 --eos-id 50256 --out "
          "train.tokens\n"
          "  octet convert --from llm.q --input climb/train-*.bin --tokenizer llama-2-7b --bos-id 1 --eos-id 2 --out "
          "train.tokens\n",
      .run = convert};
}

}  // namespace octet
