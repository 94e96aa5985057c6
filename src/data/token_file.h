#pragma once
// Token files: what training reads. Little-endian:
//   [0, 128)   TokenFileHeader
//   [128, …)   `tokens` ids of `token_bytes` bytes each (2 where the vocabulary has at most 65536 entries, else 4)
//   index      `documents` 64-bit positions, rising, of each document's first token; starts at the next multiple of 8
// The file ends where the index ends. Opening checks everything that needs no scan; verify() scans.
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"

namespace octet {

struct TokenFileHeader {
  static constexpr std::array<char, 8> kMagic = {'O', 'C', 'T', 'T', 'O', 'K', 'E', 'N'};
  static constexpr uint32_t kVersion = 1;
  enum Flags : uint32_t { kBos = 1, kEos = 2 };  // each document begins with BOS, ends with EOS

  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t token_bytes = 0;
  uint64_t tokens = 0;
  uint64_t documents = 0;
  uint64_t vocab_size = 0;
  uint64_t tokenizer_fingerprint = 0;
  uint64_t source_bytes = 0;  // of the text that became tokens: for bits per byte
  uint64_t index_offset = 0;  // bytes
  uint32_t flags = 0;
  int32_t bos_id = -1, eos_id = -1;
  uint32_t reserved[13] = {};

  static uint32_t width_for(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }
};
static_assert(sizeof(TokenFileHeader) == 128);

class TokenFile {
 public:
  explicit TokenFile(const std::filesystem::path& path);

  const TokenFileHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return file_.path(); }
  int64_t tokens() const { return int64_t(header_.tokens); }
  int64_t documents() const { return int64_t(header_.documents); }
  int64_t vocab_size() const { return int64_t(header_.vocab_size); }

  // tokens [first, first + out.size()); an id >= the file's vocabulary is an InputError that says where it is.
  void read(int64_t first, std::span<int32_t> out) const;
  int64_t document_start(int64_t document) const;
  std::vector<int64_t> document_starts(int64_t begin, int64_t end) const;
  struct Starts {
    int64_t document = 0;     // the first of them
    std::vector<int64_t> at;  // where each starts
  };
  Starts starts_in(int64_t begin, int64_t end) const;  // documents whose first token stands in [begin, end)
  void verify() const;                                 // every id and every index entry

 private:
  int64_t somewhat_before(int64_t position) const;
  LongRead file_;
  TokenFileHeader header_;
};

// Streams a token file in constant memory; the file appears under its name on finish(), whole or not at all.
class TokenFileWriter {
 public:
  // From `like`: vocab_size, tokenizer_fingerprint, flags, bos_id, eos_id. The rest is counted here.
  TokenFileWriter(const std::filesystem::path& path, const TokenFileHeader& like);
  ~TokenFileWriter();

  void begin_document();  // counts once it has a token
  void append(std::span<const int32_t> tokens);
  void add_source_bytes(int64_t bytes) { header_.source_bytes += uint64_t(bytes); }
  void set_flags(uint32_t flags) { header_.flags = flags; }  // where only the tokens show what is true of all documents
  void finish();
  const TokenFileHeader& header() const { return header_; }

 private:
  TokenFileHeader header_;
  FileWriter file_;
  struct Index;  // an unnamed temporary file next to the output, so that a billion documents need no memory
  std::unique_ptr<Index> index_;
  std::string packed_;
  bool begins_ = false;  // the next token is a document's first
};

}  // namespace octet
