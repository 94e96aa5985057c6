// Training of a tokenizer: feeds sampled lines of the documents to sentencepiece's trainer.
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "base/check.h"
#include "base/files.h"
#include "base/rng.h"
#include "data/file_names.h"
#include "data/tokenizer.h"

namespace octet {
namespace {

// Lines of all documents. An exception must not pass through sentencepiece: it is kept and ends the iteration.
class Lines : public sentencepiece::SentenceIterator {
 public:
  Lines(std::vector<std::string> files, DocumentOptions documents, int64_t max_bytes)
      : files_(std::move(files)), documents_(std::move(documents)) {
    double total = 0;
    for (const std::string& name : files_) total += double(MappedFile(name).size());
    keep_ = std::min(1.0, double(max_bytes) / std::max(1.0, total));
    Next();
  }
  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }
  void Next() override try {
    do done_ = !read_line();
    while (!done_ && (line_.find_first_not_of(" \r") == std::string::npos || line_.find('\0') != std::string::npos ||
                      uniform(0, hash("tokenizer lines"), number_++) >= keep_));
    lines_ += !done_;
  } catch (...) {
    error_ = std::current_exception();
    done_ = true;
  }
  int64_t lines() const { return lines_; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  bool read_line() {
    while (rest_.empty()) {
      DocumentFile::Raw raw;
      while (!file_ || !file_->next(raw)) {
        if (next_file_ == files_.size()) return false;
        file_.reset();
        file_.emplace(files_[next_file_++], documents_);
      }
      rest_ = file_->text(raw, storage_);
    }
    line_ = take_line(rest_);
    return true;
  }

  std::vector<std::string> files_;
  DocumentOptions documents_;
  double keep_ = 1;
  std::optional<DocumentFile> file_;
  size_t next_file_ = 0;
  std::string storage_, line_;
  std::string_view rest_;
  uint64_t number_ = 0;
  int64_t lines_ = 0;
  bool done_ = false;
  std::exception_ptr error_;
};

}  // namespace

std::string_view take_line(std::string_view& rest) {
  const size_t newline = rest.substr(0, kMaxLineBytes + 1).find('\n');
  size_t end = std::min(newline, rest.size()), skip = newline != std::string_view::npos;
  if (end > kMaxLineBytes) {
    end = rest.rfind(' ', kMaxLineBytes);
    if (end == std::string_view::npos || end == 0)
      for (end = kMaxLineBytes; end > kMaxLineBytes - 4 && (uint8_t(rest[end]) & 0xc0) == 0x80;) --end;
  }
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end + skip);
  return line;
}

void train_tokenizer(const TrainTokenizerOptions& options) {
  constexpr int kLeast = 3 + 256;  // <unk> <s> </s>, and a piece for each byte
  if (options.vocab_size <= kLeast)
    bad_input("a vocabulary of ", options.vocab_size,
              " entries: 3 control pieces and 256 bytes leave no room for words; take 1000 or more");
  if (!(options.character_coverage >= kLeastCoverage && options.character_coverage <= 1))
    bad_input("a character coverage of ", options.character_coverage, ": it must lie between ", kLeastCoverage,
              " and 1");
  const std::vector<std::string> inputs = expand_globs(options.inputs);
  keep_inputs(options.output, inputs);
  FileWriter output(options.output);  // a name that cannot be written is noticed before the work
  Lines lines(inputs, options.documents, options.max_bytes);
  lines.rethrow();
  if (lines.done()) bad_input("no text in the input: give files with text or JSONL");

  // num_threads is left alone: it only normalises in parallel, and would stand in the file.
  std::string model;
  const auto status =
      sentencepiece::SentencePieceTrainer::Train({{"model_type", "bpe"},
                                                  {"vocab_size", std::to_string(options.vocab_size)},
                                                  {"character_coverage", concat(options.character_coverage)},
                                                  {"byte_fallback", "true"},
                                                  {"split_digits", "true"},
                                                  {"allow_whitespace_only_pieces", "true"},
                                                  {"normalization_rule_name", "identity"},
                                                  {"remove_extra_whitespaces", "false"},
                                                  {"max_sentence_length", "1000000"},
                                                  {"minloglevel", "2"}},
                                                 &lines, &model);
  lines.rethrow();
  if (!status.ok()) {
    const std::string says = status.ToString();
    const bool too_small = says.find("smaller than required_chars") != std::string::npos;
    bad_input("cannot make a vocabulary of ", options.vocab_size, " entries from ", lines.lines(), " lines: ",
              too_small ? "raise it, or lower the character coverage: each character that is covered takes an entry"
                        : "give more text or lower the vocabulary",
              " (sentencepiece says: ", says, ")");
  }
  output.write(model);
  output.commit();
}

}  // namespace octet
