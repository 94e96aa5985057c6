#include "data/convert_tokens.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "data/file_names.h"
#include "data/foreign_tokens.h"
#include "data/megatron_index.h"

namespace octet {
namespace {
namespace fs = std::filesystem;
constexpr int64_t kBlock = int64_t{1} << 20;  // ids at a time

struct Source {
  ForeignTokens tokens;
  std::optional<MegatronIndex> index;
};

Source open_megatron(const fs::path& bin) {
  fs::path idx = bin;
  MegatronIndex index(idx.replace_extension(".idx"));
  ForeignTokens tokens = open_ids(LongRead(bin), index.type());
  if (index.bin_bytes() != tokens.bytes())
    bad_input("'", bin.string(), "' has ", tokens.bytes(), " bytes, its index '", idx.string(), "' speaks of ",
              index.bin_bytes(), ": one of the two is cut short, or of another dataset; copy both again");
  return {std::move(tokens), std::move(index)};
}

// Megatron's names may be those of its .bin, of its .idx, or without either; the three are one file.
std::vector<std::string> megatron_names(std::vector<std::string> given) {
  std::error_code none;
  for (std::string& name : given)
    if (!fs::exists(name, none) && fs::exists(name + ".bin", none)) name += ".bin";
  std::vector<std::string> names;
  for (const std::string& found : expand_globs(given)) {
    const fs::path path(found);
    if (path.extension() != ".bin" && path.extension() != ".idx")
      bad_input("'", found, "' is no file of a Megatron dataset: name its NAME.bin, with NAME.idx beside it");
    const std::string name = fs::path(path).replace_extension(".bin").string();
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

std::vector<Source> open_all(const ConvertOptions& options) {
  std::vector<Source> sources;
  const bool megatron = options.format == "megatron";
  std::vector<std::string> read;
  for (const std::string& name : megatron ? megatron_names(options.inputs) : expand_globs(options.inputs)) {
    read.push_back(name);
    if (megatron) read.push_back(fs::path(name).replace_extension(".idx").string());
    sources.push_back(megatron ? open_megatron(name) : Source{open_foreign(options.format, name), {}});
  }
  keep_inputs(options.output, read);
  return sources;
}

int64_t vocabulary(const ConvertOptions& options, const std::vector<Source>& sources) {
  if (options.vocab_size > 0) return options.vocab_size;
  const int64_t vocab = sources[0].tokens.vocab_size;
  for (const Source& source : sources)
    if (source.tokens.vocab_size != vocab || vocab == 0)
      bad_input("'", source.tokens.file.path().string(), "' does not say ", vocab == 0 ? "" : "the same ",
                "of how many entries its vocabulary is", vocab == 0 ? "" : " as the files before it",
                ": give --vocab-size, or the --tokenizer that made it");
  return vocab;
}

// Finds where documents begin, block by block through all files.
class Documents {
 public:
  explicit Documents(const ConvertOptions& options) : marked_(options.marked), bos_(options.bos), eos_(options.eos) {}

  // Positions in `ids`, which follow those of the call before. index: of the file that they are from, if it has one;
  // first: the place of ids[0] in that file.
  std::vector<size_t> starts(std::span<const int32_t> ids, MegatronIndex* index, int64_t first) {
    std::vector<size_t> found;
    if (first == 0) next_ = 0;
    if (index) {
      for (; next_ < first + int64_t(ids.size()); next_ += index->next_document())
        found.push_back(size_t(next_ - first));
    } else {
      const auto begins = [&](int32_t before, int32_t id) { return marked_ && (is(id, bos_) || is(before, eos_)); };
      if (ids.empty()) return found;
      if (before_ == kNone || (!marked_ && first == 0) || begins(before_, ids[0])) found.push_back(0);
      for (size_t i = 1; i < ids.size(); ++i)
        if (begins(ids[i - 1], ids[i])) found.push_back(i);
    }
    for (const size_t s : found) {
      const int32_t before = s > 0 ? ids[s - 1] : before_;
      all_bos_ &= is(ids[s], bos_);
      all_eos_ &= before == kNone || is(before, eos_);
      some_bos_ |= is(ids[s], bos_);
      some_eos_ |= is(before, eos_);
    }
    if (!ids.empty()) before_ = ids.back();
    return found;
  }

  uint32_t flags() const {  // what is true of all documents
    return (all_bos_ ? TokenFileHeader::kBos : 0u) | (all_eos_ && is(before_, eos_) ? TokenFileHeader::kEos : 0u);
  }
  void require_marks() const {
    const char* remedy = " is nowhere in the input: give the right one, or --unmarked if each file is one document";
    if (marked_ && bos_ >= 0 && !some_bos_) bad_input("--bos-id ", bos_, remedy);
    if (marked_ && eos_ >= 0 && !some_eos_ && !is(before_, eos_)) bad_input("--eos-id ", eos_, remedy);
  }

 private:
  static constexpr int32_t kNone = -1;
  static bool is(int32_t id, int32_t mark) { return mark >= 0 && id == mark; }
  const bool marked_;
  const int32_t bos_, eos_;
  int32_t before_ = kNone;  // the id before the block
  int64_t next_ = 0;        // where the next document begins, by the index
  bool all_bos_ = true, all_eos_ = true, some_bos_ = false, some_eos_ = false;
};

void append(std::span<const int32_t> ids, const std::vector<size_t>& starts, TokenFileWriter& writer) {
  size_t at = 0;
  for (const size_t start : starts) {
    writer.append(ids.subspan(at, start - at));
    writer.begin_document();
    at = start;
  }
  writer.append(ids.subspan(at));
}

}  // namespace

TokenFileHeader convert_tokens(const ConvertOptions& options) {
  std::vector<Source> sources = open_all(options);
  TokenFileHeader header;
  header.vocab_size = uint64_t(vocabulary(options, sources));
  header.tokenizer_fingerprint = options.tokenizer_fingerprint;
  header.bos_id = options.bos;
  header.eos_id = options.eos;
  int64_t total = 0, done = 0;
  for (const Source& source : sources) total += source.tokens.bytes();
  TokenFileWriter writer(options.output, header);
  Documents documents(options);
  std::vector<int32_t> ids;
  if (options.progress) options.progress(0, total);  // time counts from here
  for (Source& source : sources) {
    const ForeignTokens& tokens = source.tokens;
    MegatronIndex* const index = source.index ? &*source.index : nullptr;
    for (int64_t first = 0; first < tokens.count; first += int64_t(ids.size())) {
      ids.resize(size_t(std::min(kBlock, tokens.count - first)));
      tokens.read(first, ids, int64_t(header.vocab_size));
      append(ids, documents.starts(ids, index, first), writer);
      done += int64_t(ids.size()) * bytes_of(tokens.type);
      if (options.progress) options.progress(done, total);
    }
    while (index && !index->ended()) index->next_document();  // empty ones at its end
  }
  if (writer.header().tokens == 0) bad_input("no tokens in the input: name files that have some");
  documents.require_marks();
  writer.set_flags(documents.flags());
  writer.finish();
  return writer.header();
}

}  // namespace octet
