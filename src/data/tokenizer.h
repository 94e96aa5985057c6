#pragma once
// Text to token ids and back through a sentencepiece model: one trained here, Llama-2's tokenizer.model, or any other.
// encode() adds neither BOS nor EOS. decode(encode(x)) == x for valid UTF-8 without U+2581, sentencepiece's mark for a
// space, if the model has byte fallback and identity normalisation, as Llama-2's and ours do. An invalid byte becomes
// U+FFFD.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/documents.h"

namespace octet {

class Tokenizer {
 public:
  using Words =
      std::unordered_map<std::string, std::vector<int>>;  // words met before: a few times faster, the same ids

  explicit Tokenizer(const std::filesystem::path& model);
  Tokenizer(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<int> encode(std::string_view text, Words* words = nullptr) const;
  std::string decode(std::span<const int> ids) const;  // ids the tokenizer does not have decode as unk
  int vocab_size() const;
  int bos() const;  // -1 where the model has none; so eos() and unk()
  int eos() const;
  int unk() const;
  enum class Kind { normal, control, byte, unknown, other };
  Kind kind(int id) const;
  float score(int id) const;
  std::string piece(int id) const;                       // as the model spells it: "<s>", "\u2581the", "<0x0A>"
  uint64_t fingerprint() const { return fingerprint_; }  // of the bytes of the model file

  // Text may be cut and its parts encoded on their own, with the ids of the whole (exactly with BPE; sums of unigram
  // scores may round otherwise): encode(a + b) is
  // encode(a) + encode_rest(b) where |a| = cut(a + b, least). A cut lies at or after `least` (with luck not far),
  // before a space or newline, by force within a word after 64 KiB without one; npos: none before the end of the text.
  size_t cut(std::string_view text, size_t least) const;
  std::vector<int> encode_rest(std::string_view text, Words* words = nullptr) const;

 private:
  std::vector<int> encode_whole(std::string_view text) const;
  std::vector<int> encode_after_newline(std::string_view text) const;
  void find_cuts();
  struct Model;  // keeps sentencepiece out of this header
  std::unique_ptr<Model> model_;
  uint64_t fingerprint_ = 0;
  bool cuts_at_newline_ = false, cuts_at_space_ = false;
  size_t newline_ids_ = 0;  // how many ids a newline has on its own
};

struct TrainTokenizerOptions {
  std::vector<std::string> inputs;  // names or globs of text and JSONL files
  std::filesystem::path output;     // tokenizer.model
  int vocab_size = 32000;           // all of it: 3 control pieces, 256 bytes, characters, merged pieces
  double character_coverage = 0.99995;
  int64_t max_bytes = int64_t(256) << 20;  // of text to learn from; of a larger input a sample of its lines
  DocumentOptions documents;
};

// Byte-pair encoding with byte fallback, single digits, and no normalisation: the settings of Llama-2's tokenizer. The
// same text and options give the same file, byte for byte.
void train_tokenizer(const TrainTokenizerOptions& options);

}  // namespace octet
