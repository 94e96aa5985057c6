#include "data/tokenize.h"

#include <algorithm>

#include "base/check.h"
#include "data/file_names.h"
#include "data/ordered_parallel.h"

namespace octet {
namespace {

constexpr size_t kTaskBytes = size_t(1) << 18;  // some 50 ms of work

// A document, or a part of a long one.
struct Part {
  DocumentFile::Raw raw;
  bool begins = true, ends = true;
};
struct Task {
  std::shared_ptr<const DocumentFile> file;  // keeps it mapped
  std::vector<Part> parts;
  int64_t done_bytes = 0;  // of all input, when this task is written
};
struct Result {
  std::vector<int32_t> tokens;
  std::vector<size_t> starts;  // of documents, in `tokens`
  int64_t source_bytes = 0, done_bytes = 0;
};

// Cuts the inputs into tasks of about kTaskBytes: many short documents, or a part of a long one.
class Reader {
 public:
  Reader(std::vector<std::string> files, const DocumentOptions& documents, const Tokenizer& tokenizer)
      : files_(std::move(files)), documents_(documents), tokenizer_(tokenizer) {
    for (const std::string& name : files_) total_bytes_ += DocumentFile(name, documents_).size();
  }
  int64_t total_bytes() const { return total_bytes_; }

  bool next(Task& task) {
    while (fill(task), task.parts.empty()) {
      if (file_) done_bytes_ += file_->size();
      file_.reset();
      if (next_file_ == files_.size()) return false;
      file_ = std::make_shared<DocumentFile>(files_[next_file_++], documents_);
    }
    task.file = file_;
    task.done_bytes = done_bytes_ + file_->position();
    return true;
  }

 private:
  void fill(Task& task) {
    size_t bytes = 0;
    while (file_ && bytes < kTaskBytes) {
      if (rest_.bytes.empty()) {
        if (!file_->next(rest_)) return;
        begins_ = true;
      }
      // Only text is cut here: a line of JSON has to be decoded whole.
      const size_t cut = rest_.line > 0 ? std::string_view::npos : tokenizer_.cut(rest_.bytes, kTaskBytes);
      Part part{{rest_.bytes.substr(0, cut), rest_.line}, begins_, cut == std::string_view::npos};
      rest_.bytes.remove_prefix(part.raw.bytes.size());
      begins_ = false;
      bytes += part.raw.bytes.size();
      task.parts.push_back(part);
    }
  }

  std::vector<std::string> files_;
  const DocumentOptions& documents_;
  const Tokenizer& tokenizer_;
  std::shared_ptr<DocumentFile> file_;
  size_t next_file_ = 0;
  DocumentFile::Raw rest_;  // what is left of the document at hand
  bool begins_ = true;
  int64_t done_bytes_ = 0, total_bytes_ = 0;
};

// Words that were met before, handed from task to task; as many sets as there are threads.
class WordPool {
 public:
  Tokenizer::Words take() {
    const std::lock_guard lock(mutex_);
    if (sets_.empty()) return {};
    Tokenizer::Words words = std::move(sets_.back());
    sets_.pop_back();
    return words;
  }
  void give_back(Tokenizer::Words words) {
    constexpr size_t kMost = 200000;  // some 30 MB; a larger set is emptied
    const std::lock_guard lock(mutex_);
    if (words.size() < kMost) sets_.push_back(std::move(words));
  }

 private:
  std::mutex mutex_;
  std::vector<Tokenizer::Words> sets_;
};

Result encode(const Task& task, const Tokenizer& tokenizer, uint32_t flags, WordPool& pool) {
  Result result;
  result.done_bytes = task.done_bytes;
  std::string storage;
  Tokenizer::Words words = pool.take();
  for (const Part& part : task.parts) {
    const std::string_view text = task.file->text(part.raw, storage);
    if (text.empty()) continue;  // an empty string in JSON is no document
    if (part.begins) {
      result.starts.push_back(result.tokens.size());
      if (flags & TokenFileHeader::kBos) result.tokens.push_back(tokenizer.bos());
    }
    const std::vector<int> ids = part.begins ? tokenizer.encode(text, &words) : tokenizer.encode_rest(text, &words);
    result.tokens.insert(result.tokens.end(), ids.begin(), ids.end());
    if (part.ends && (flags & TokenFileHeader::kEos)) result.tokens.push_back(tokenizer.eos());
    result.source_bytes += int64_t(text.size());
  }
  pool.give_back(std::move(words));
  return result;
}

void write(const Result& result, TokenFileWriter& writer) {
  const std::span<const int32_t> tokens = result.tokens;
  size_t at = 0;
  for (const size_t start : result.starts) {
    writer.append(tokens.subspan(at, start - at));
    writer.begin_document();
    at = start;
  }
  writer.append(tokens.subspan(at));
  writer.add_source_bytes(result.source_bytes);
}

}  // namespace

TokenFileHeader tokenize(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (options.threads < 0) bad_input(options.threads, " threads: give at least 1, or 0 for all cores");
  const int threads = options.threads > 0 ? options.threads : int(std::max(1u, std::thread::hardware_concurrency()));
  TokenFileHeader header;
  header.vocab_size = uint64_t(tokenizer.vocab_size());
  header.tokenizer_fingerprint = tokenizer.fingerprint();
  header.bos_id = tokenizer.bos();
  header.eos_id = tokenizer.eos();
  if (options.bos && tokenizer.bos() >= 0) header.flags |= TokenFileHeader::kBos;
  if (options.eos && tokenizer.eos() >= 0) header.flags |= TokenFileHeader::kEos;

  const std::vector<std::string> inputs = expand_globs(options.inputs);
  keep_inputs(options.output, inputs);
  Reader reader(inputs, options.documents, tokenizer);
  TokenFileWriter writer(options.output, header);
  WordPool pool;
  if (options.progress) options.progress(0, reader.total_bytes());  // time counts from here
  ordered_parallel<Task, Result>(
      threads, [&](Task& task) { return reader.next(task); },
      [&](const Task& task) { return encode(task, tokenizer, header.flags, pool); },
      [&](Result result) {
        write(result, writer);
        if (options.progress) options.progress(result.done_bytes, reader.total_bytes());
      });
  if (writer.header().tokens == 0) bad_input("no text in the input: give files with text or JSONL");
  writer.finish();
  if (options.progress) options.progress(reader.total_bytes(), reader.total_bytes());
  return writer.header();
}

}  // namespace octet
