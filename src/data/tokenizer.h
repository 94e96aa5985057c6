#pragma once
// Text to token ids and back: through a sentencepiece model (one trained here, Llama-2's tokenizer.model, any other),
// or through Hugging Face's tokenizer.json (byte-pair encoding: GPT-NeoX, Llama 3, Llama 2, …) with the ids of their
// tokenizers library. encode() adds neither BOS nor EOS. decode(encode(x)) == x for valid UTF-8 without U+2581,
// sentencepiece's mark for a space, if the model has byte fallback and identity normalisation, as Llama-2's and ours
// do. An invalid byte becomes U+FFFD.
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
  // Of a word that is kept among them, at most: a line of Chinese, which has no spaces, never comes again.
  static constexpr size_t kKnownBytes = 64;

  explicit Tokenizer(const std::filesystem::path& model);  // a file, or the folder that holds one
  Tokenizer(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<int> encode(std::string_view text, Words* words = nullptr) const;
  std::string decode(std::span<const int> ids) const;  // ids the tokenizer does not have decode as unk
  int vocab_size() const;
  int bos() const;  // what begins each text; -1 where nothing does; so eos() and unk()
  int eos() const;
  int unk() const;
  enum class Kind { normal, control, byte, unknown, other };
  Kind kind(int id) const;
  float score(int id) const;                             // of sentencepiece; else 0
  std::string piece(int id) const;                       // as the model spells it: "<s>", "\u2581the", "<0x0A>"
  uint64_t fingerprint() const { return fingerprint_; }  // of the bytes of the model file

  // Text may be cut and its parts encoded on their own, with the ids of the whole (exactly with BPE; sums of unigram
  // scores may round otherwise): encode(a + b) is
  // encode(a) + encode_rest(b) where |a| = cut(a + b, least). A cut lies at or after `least` (with luck not far),
  // before a space or newline, by force within a word after 64 KiB without one; npos: none before the end of the text.
  size_t cut(std::string_view text, size_t least) const;
  std::vector<int> encode_rest(std::string_view text, Words* words = nullptr) const;

  bool is_sentencepiece() const { return sentencepiece_; }

  struct Model;

 private:
  std::unique_ptr<const Model> model_;
  uint64_t fingerprint_ = 0;
  bool sentencepiece_ = true;
};

// tokenizer.model in the folder, else tokenizer.json; empty where there is neither. A file is itself.
std::filesystem::path tokenizer_file(const std::filesystem::path& folder_or_file);
// That file as tokenizer.model or tokenizer.json, the latter with the files that transformers keeps next to it; nothing
// where there is none.
void copy_tokenizer(const std::filesystem::path& folder_or_file, const std::filesystem::path& to);

inline constexpr double kLeastCoverage = 0.98;  // that sentencepiece takes

// Takes the next line for training off the front. Longer ones are cut, at a space if there is one: merges never cross a
// space anyway. Looks at kMaxLineBytes + 1 bytes at most: each cut of a text without newlines would read all the rest.
inline constexpr size_t kMaxLineBytes = 4096;
std::string_view take_line(std::string_view& rest);

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
