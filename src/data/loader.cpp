#include "data/loader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "base/check.h"
#include "base/rng.h"
#include "data/file_names.h"
#include "data/mixture.h"
#include "data/permutation.h"

namespace octet {
namespace {

constexpr int64_t kMaxSeqLen = int64_t(1) << 31;
constexpr uint64_t kEpochs = hash("epoch order");  // this use of the seed

}  // namespace

// Files whose windows are numbered through, `first[f]` the number of file f's first one.
struct Loader::Source {
  std::vector<TokenFile> files;
  std::vector<int64_t> first, first_in_file;  // the split's first window within the file
  int64_t windows = 0;
};

struct Loader::Window {
  const TokenFile* file;
  int64_t first, targets;  // token position of the first input; how many targets the file still has, at most T
};

Loader::Loader(LoaderConfig config) : config_(std::move(config)) {
  const int64_t T = config_.seq_len;
  if (T < 1 || T > kMaxSeqLen) bad_input("a sequence length of ", T, " tokens: it must be at least 1");
  if (config_.files.empty()) bad_input("no token files: name at least one (make them with 'octet tokenize')");
  if (!config_.weights.empty() && config_.weights.size() != config_.files.size())
    bad_input(config_.weights.size(), " weights for ", config_.files.size(),
              " entries of files: give one each, or none");
  if (config_.split != Split::all && !(config_.held_out > 0 && config_.held_out < 1))
    bad_input("a held-out fraction of ", config_.held_out, ": it must lie between 0 and 1");

  std::set<std::string> seen;
  const bool mixed = !config_.weights.empty();
  for (const std::string& entry : config_.files) {
    if (mixed || sources_.empty()) sources_.emplace_back();
    for (const std::string& name : expand_globs({entry})) {
      if (!seen.insert(std::filesystem::weakly_canonical(name)).second)
        bad_input("token file '", name,
                  "' is named twice, its tokens would count twice: name it once (weights can raise its share)");
      sources_.back().files.emplace_back(name);
    }
  }
  const uint64_t tokenizer = tokenizer_fingerprint();
  for (Source& source : sources_) {
    for (const TokenFile& file : source.files) {
      const std::string name = "token file '" + file.path().string() + "' ";
      if (file.vocab_size() > config_.vocab_size)
        bad_input(name, "has a vocabulary of ", file.vocab_size(), " entries, the model ", config_.vocab_size,
                  ": raise the model's vocab_size or tokenise with a smaller tokenizer");
      if (const uint64_t own = file.header().tokenizer_fingerprint; own != tokenizer) {
        const std::string first = sources_[0].files[0].path().string();
        if (own == 0 || tokenizer == 0)
          bad_input("token file '", own == 0 ? file.path().string() : first,
                    "' does not say which tokenizer made it, '", own == 0 ? first : file.path().string(),
                    "' does: name it to octet convert with --tokenizer");
        bad_input(name, "was made with another tokenizer than '", first, "': tokenise both with the same one");
      }
      if (file.tokens() < T + 1)
        bad_input(name, "has ", file.tokens(), " tokens, a sequence takes ", T,
                  " + 1: lower seq_len or give a longer file");
      const int64_t all = (file.tokens() - 2) / T + 1;  // ceil((tokens - 1) / T)
      const int64_t held = std::clamp<int64_t>(std::llround(double(all) * config_.held_out), 1, all);
      if (config_.split != Split::all && held == all)
        bad_input(
            name, "has only ", all,
            " sequences, too few to hold some out: lower seq_len or the held-out fraction, or name validation files");
      source.first.push_back(source.windows);
      source.first_in_file.push_back(config_.split == Split::held_out ? all - held : 0);
      source.windows += config_.split == Split::all ? all : config_.split == Split::train ? all - held : held;
    }
    windows_ += source.windows;
  }
  if (mixed) mixture_ = std::make_unique<Mixture>(config_.weights);
}
Loader::Loader(Loader&&) noexcept = default;
Loader::~Loader() = default;

// Sample to (source, running number within it) to (epoch, number within the epoch) to window.
Loader::Window Loader::locate(int64_t sample) const {
  CHECK(sample >= 0, "sample ", sample);
  uint64_t s = 0, number = uint64_t(sample);
  if (mixture_) {
    const Mixture::Pick pick = mixture_->pick(number);
    s = pick.source, number = pick.number;
  }
  const Source& source = sources_[s];
  const uint64_t epoch = number / uint64_t(source.windows);
  uint64_t w = number % uint64_t(source.windows);
  if (config_.shuffle) w = Permutation(uint64_t(source.windows), random_bits(config_.seed, kEpochs + s, epoch))(w);

  const auto next = std::upper_bound(source.first.begin(), source.first.end(), int64_t(w));
  const size_t f = size_t(next - source.first.begin()) - 1;
  const TokenFile& file = source.files[f];
  const int64_t first = (int64_t(w) - source.first[f] + source.first_in_file[f]) * config_.seq_len;
  return {&file, first, std::min(config_.seq_len, file.tokens() - 1 - first)};
}

Batch blank_batch(int64_t batch, int64_t seq_len, Bounds documents) {
  const size_t n = size_t(batch * seq_len);
  Batch b{.tokens = std::vector<int32_t>(n, 0),
          .targets = std::vector<int32_t>(n, kIgnore),
          .batch = batch,
          .seq_len = seq_len};
  if (documents == Bounds::of_documents) b.begins.assign(n, 0), b.ends.assign(n, int32_t(seq_len));
  return b;
}

Batch Loader::batch(int64_t first_sample, int64_t count) const {
  const size_t T = size_t(config_.seq_len);
  // A padded position is the token 0: its output is ignored, and no other sees it.
  Batch b = blank_batch(count, config_.seq_len, config_.documents);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < size_t(count); ++i) {
    const Window w = locate(first_sample + int64_t(i));
    ids.resize(size_t(w.targets) + 1);
    w.file->read(w.first, ids);
    std::copy(ids.begin(), ids.end() - 1, b.tokens.begin() + ptrdiff_t(i * T));
    std::copy(ids.begin() + 1, ids.end(), b.targets.begin() + ptrdiff_t(i * T));
    // By the file's index, not by BOS and EOS, which a tokenizer may lack. Positions run on from document to document:
    // rotary embedding turns by their differences, which within a document are the same wherever it begins.
    if (config_.documents == Bounds::of_documents)
      set_bounds(b.bounds().row(int64_t(i), config_.seq_len), *w.file, w.first, w.targets);
    if (!config_.ignore_document_starts) continue;
    const TokenFile::Starts documents = w.file->starts_in(w.first + 1, w.first + w.targets + 1);
    for (size_t d = 0; d < documents.at.size(); ++d) {
      const int64_t t = documents.at[d] - w.first - 1;
      if (t < 0)
        bad_input("token file '", w.file->path().string(), "' has a damaged index at document ",
                  documents.document + int64_t(d), ": make it again with 'octet tokenize'");
      b.targets[i * T + size_t(t)] = kIgnore;
    }
  }
  return b;
}

int64_t Loader::valid_targets(int64_t first_sample, int64_t count) const {
  int64_t valid = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Window w = locate(first_sample + i);
    valid += w.targets;
    if (config_.ignore_document_starts)
      valid -= int64_t(w.file->starts_in(w.first + 1, w.first + w.targets + 1).at.size());
  }
  return valid;
}

int64_t Loader::samples_per_epoch() const { return windows_; }

uint64_t Loader::tokenizer_fingerprint() const { return sources_[0].files[0].header().tokenizer_fingerprint; }

// Headers, and 16 tokens at each of 16 places of a file: another file is noticed, a moved one is not.
uint64_t Loader::fingerprint() const {
  uint64_t h = 0;
  const auto add = [&h](uint64_t x) { h = mix(h ^ mix(x + 0x9e3779b97f4a7c15)); };
  add(uint64_t(config_.seq_len));
  add(config_.shuffle ? config_.seed : 0);
  add(uint64_t(config_.shuffle) | uint64_t(config_.ignore_document_starts) << 1 | uint64_t(config_.split) << 2 |
      uint64_t(config_.documents) << 4);
  if (config_.split != Split::all) add(std::bit_cast<uint64_t>(config_.held_out));
  for (const double weight : config_.weights) add(std::bit_cast<uint64_t>(weight));
  for (const Source& source : sources_) {
    add(source.files.size());
    for (const TokenFile& file : source.files) {
      const TokenFileHeader& header = file.header();
      for (const uint64_t x :
           {header.tokens, header.documents, header.vocab_size, header.tokenizer_fingerprint, header.source_bytes})
        add(x);
      std::vector<int32_t> ids(size_t(std::min<int64_t>(16, file.tokens())));
      for (int64_t place = 0; place < 16; ++place) {
        file.read((file.tokens() - int64_t(ids.size())) / 15 * place, ids);
        for (const int32_t id : ids) add(uint64_t(id));
      }
    }
  }
  return h;
}

}  // namespace octet
