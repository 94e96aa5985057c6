#include "data/token_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/check.h"
#include "base/refused.h"

namespace octet {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read as they are");
constexpr int64_t kPage = 512;  // entries of the index that are read at once
constexpr const char* kRemake = ": make it again with 'octet tokenize'";

uint64_t index_offset_for(uint64_t tokens, uint32_t width) {
  return (sizeof(TokenFileHeader) + tokens * width + 7) / 8 * 8;
}

// Lengths are compared with the size of the file by division, so that a false one cannot overflow a product.
TokenFileHeader checked_header(const LongRead& file) {
  const std::string name = "token file '" + file.path().string() + "' ";
  const uint64_t size = uint64_t(file.size());
  TokenFileHeader h;
  file.read(0, &h, int64_t(std::min(size, sizeof h)));
  const size_t magic_bytes = std::min(size, h.magic.size());
  if (magic_bytes == 0 || std::memcmp(h.magic.data(), TokenFileHeader::kMagic.data(), magic_bytes) != 0)
    bad_input("'", file.path().string(),
              "' is not a token file: make one from text or JSONL with 'octet tokenize', from tokens of llm.c, "
              "Megatron-LM and others with 'octet convert'");
  if (size < sizeof h) bad_input(name, "is truncated within its header (", size, " bytes)", kRemake);
  if (h.version > TokenFileHeader::kVersion)
    bad_input(name, "has format version ", h.version, ", newer than this program's ", TokenFileHeader::kVersion,
              ": use a newer octet, or make it again with this one");
  if (h.version == 0) bad_input(name, "has format version 0, which does not exist", kRemake);
  if (h.vocab_size < 1 || h.vocab_size > uint64_t(INT32_MAX))
    bad_input(name, "claims a vocabulary of ", h.vocab_size, " entries", kRemake);
  if (h.token_bytes != TokenFileHeader::width_for(int64_t(h.vocab_size)))
    bad_input(name, "claims ", h.token_bytes, " bytes a token; a vocabulary of ", h.vocab_size, " takes ",
              TokenFileHeader::width_for(int64_t(h.vocab_size)), kRemake);
  const uint64_t room = size - sizeof h;
  if (h.tokens > room / h.token_bytes)
    bad_input(name, "is truncated: its header promises ", h.tokens, " tokens, ", size, " bytes hold at most ",
              room / h.token_bytes, kRemake);
  if (h.index_offset != index_offset_for(h.tokens, h.token_bytes))
    bad_input(name, "has its document index at byte ", h.index_offset, " instead of ",
              index_offset_for(h.tokens, h.token_bytes), kRemake);
  const uint64_t index_bytes = size < h.index_offset ? 0 : size - h.index_offset;
  if (size < h.index_offset || h.documents > index_bytes / 8)
    bad_input(name, "is truncated: its index of ", h.documents, " documents does not fit in ", size, " bytes", kRemake);
  if (h.documents * 8 != index_bytes)
    bad_input(name, "has ", index_bytes - h.documents * 8, " bytes after its end", kRemake);
  if (h.documents > h.tokens || (h.documents == 0) != (h.tokens == 0))
    bad_input(name, "claims ", h.documents, " documents in ", h.tokens, " tokens", kRemake);
  return h;
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path) : file_(path), header_(checked_header(file_)) {
  if (documents() > 0 && (document_start(0) != 0 || document_start(documents() - 1) >= tokens()))
    bad_input("token file '", path.string(), "' has a damaged document index", kRemake);
}

void TokenFile::read(int64_t first, std::span<int32_t> out) const {
  const int64_t n = int64_t(out.size());
  CHECK(first >= 0 && n <= tokens() && first <= tokens() - n, "tokens [", first, ", +", n, ") of ", path().string());
  const int64_t width = header_.token_bytes;
  char* const ids = reinterpret_cast<char*>(out.data()) + n * (4 - width);  // narrow ones at the end of their place
  file_.read(int64_t(sizeof header_) + first * width, ids, n * width);
  if (width == 2) {
    for (int64_t i = 0; i < n; ++i) {
      uint16_t id;
      std::memcpy(&id, ids + 2 * i, 2);
      out[size_t(i)] = id;  // ends before the next one begins
    }
  }
  const uint32_t vocab = uint32_t(header_.vocab_size);
  for (int64_t i = 0; i < n; ++i)
    if (const uint32_t id = uint32_t(out[size_t(i)]); id >= vocab) [[unlikely]]
      bad_input("token file '", path().string(), "': token ", first + i, " has id ", id, ", its vocabulary has ", vocab,
                " entries", kRemake);
}

int64_t TokenFile::document_start(int64_t document) const { return document_starts(document, document + 1)[0]; }

std::vector<int64_t> TokenFile::document_starts(int64_t begin, int64_t end) const {
  CHECK(begin >= 0 && begin <= end && end <= documents(), "documents ", begin, " to ", end, " of ", path().string());
  std::vector<int64_t> starts(size_t(end - begin));
  file_.read(int64_t(header_.index_offset) + 8 * begin, starts.data(), 8 * (end - begin));
  return starts;
}

// Documents whose first token stands before `position`, less at most a page of the index.
int64_t TokenFile::somewhat_before(int64_t position) const {
  int64_t low = 0, high = documents();  // the answer lies in [low, high]
  while (high - low > kPage) {
    const int64_t mid = low + (high - low) / 2;
    if (document_start(mid) < position) low = mid + 1;
    else high = mid;
  }
  return low;
}

TokenFile::Starts TokenFile::starts_in(int64_t begin, int64_t end) const {
  Starts found{.document = somewhat_before(begin)};
  for (int64_t page = found.document; page < documents(); page += kPage)
    for (const int64_t start : document_starts(page, std::min(documents(), page + kPage))) {
      if (start >= end) return found;
      if (start < begin && found.at.empty()) ++found.document;
      else found.at.push_back(start);
    }
  return found;
}

void TokenFile::verify() const {
  constexpr int64_t kBlock = int64_t{1} << 20;
  std::vector<int32_t> ids(size_t(std::min(tokens(), kBlock)));
  for (int64_t first = 0; first < tokens(); first += int64_t(ids.size()))
    read(first, std::span(ids).first(size_t(std::min(int64_t(ids.size()), tokens() - first))));
  int64_t before = -1;
  for (int64_t begin = 0; begin < documents(); begin += kBlock)
    for (int64_t d = begin; const int64_t start : document_starts(begin, std::min(documents(), begin + kBlock))) {
      if (start <= before || start >= tokens())
        bad_input("token file '", path().string(), "': document ", d, " starts at token ", start,
                  ", the one before at ", before, " of ", tokens(), kRemake);
      before = start, ++d;
    }
}

// ---- writing

struct TokenFileWriter::Index {
  std::FILE* file;
  ~Index() { std::fclose(file); }
};

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, const TokenFileHeader& like) : file_(path) {
  CHECK(like.vocab_size >= 1 && like.vocab_size <= uint64_t(INT32_MAX), "a vocabulary of ", like.vocab_size);
  header_.vocab_size = like.vocab_size;
  header_.token_bytes = TokenFileHeader::width_for(int64_t(like.vocab_size));
  header_.tokenizer_fingerprint = like.tokenizer_fingerprint;
  header_.flags = like.flags;
  header_.bos_id = like.bos_id;
  header_.eos_id = like.eos_id;
  file_.write(&header_, sizeof header_);  // a placeholder: finish() writes the counts

  const std::string name = path.string() + ".index.tmp";
  std::FILE* index = std::fopen(name.c_str(), "w+b");
  if (!index) refused_path("write", name, errno);
  index_.reset(new Index{index});
  ::unlink(name.c_str());
}
TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::begin_document() { begins_ = true; }

void TokenFileWriter::append(std::span<const int32_t> tokens) {
  if (tokens.empty()) return;  // a document without tokens is none
  if (begins_) {
    if (std::fwrite(&header_.tokens, 8, 1, index_->file) != 1)
      throw SystemError(concat("cannot write '", file_.path().string(), "': ", std::strerror(errno)));
    ++header_.documents;
    begins_ = false;
  }
  CHECK(header_.documents > 0, "tokens before the first document");
  const size_t width = header_.token_bytes;
  packed_.resize(tokens.size() * width);
  char* to = packed_.data();
  for (const int32_t id : tokens) {
    CHECK(id >= 0 && uint64_t(id) < header_.vocab_size, "token id ", id, " of ", header_.vocab_size);
    if (width == 2) std::memcpy(to, &id, 2);
    else std::memcpy(to, &id, 4);
    to += width;
  }
  file_.write(packed_);
  header_.tokens += tokens.size();
}

void TokenFileWriter::finish() {
  header_.index_offset = index_offset_for(header_.tokens, header_.token_bytes);
  const char zeros[8] = {};
  file_.write(zeros, int64_t(header_.index_offset) - file_.written());
  std::rewind(index_->file);
  std::vector<char> buffer(1 << 16);
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), index_->file))
    file_.write(buffer.data(), int64_t(n));
  if (std::ferror(index_->file) || file_.written() != int64_t(header_.index_offset + 8 * header_.documents))
    throw SystemError(
        concat("cannot write '", file_.path().string(), "': its document index was lost: is the disk full?"));
  file_.overwrite(0, &header_, sizeof header_);
  file_.commit();
}

}  // namespace octet
