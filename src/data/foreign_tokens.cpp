#include "data/foreign_tokens.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/json.h"
#include "data/packed.h"

namespace octet {
namespace {

static_assert(std::endian::native == std::endian::little, "ids are little-endian and read as they are");
constexpr int64_t kHeaderBytes = 1024;  // of llm.c and llm.q

template <class T>
void widen(const std::string& raw, std::span<int32_t> out, const ForeignTokens& from, int64_t first, int64_t vocab) {
  for (size_t i = 0; i < out.size(); ++i) {
    T id;
    std::memcpy(&id, raw.data() + i * sizeof(T), sizeof(T));
    if (uint64_t(int64_t(id)) >= uint64_t(vocab)) [[unlikely]]  // a negative one becomes a large one
      bad_input("'", from.file.path().string(), "': token ", first + int64_t(i), " (byte ",
                from.offset + (first + int64_t(i)) * int64_t(sizeof(T)), ") has id ", +id, ", the vocabulary has ",
                vocab, " entries: give --vocab-size of the model that the tokens are for",
                from.vocab_size > 0 ? " (the file's own may leave out added tokens)" : "",
                ", or correct --from if its ids are of another type");
    out[i] = int32_t(id);
  }
}

template <class T>
T number_at(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// What a file is by its first bytes, for those who gave the wrong format.
std::string kind_of(const std::string& head) {
  const auto begins = [&](std::string_view magic) { return head.starts_with(magic); };
  const int32_t first = head.size() >= 4 ? number_at<int32_t>(head, 0) : 0;
  if (begins("OCTTOKEN")) return "is a token file of octet already: train reads it as it is";
  if (begins("BIN.TOK\n")) return "is a token file of llm.q: --from llm.q";
  if (begins(std::string_view("MMIDIDX\0", 8)))
    return "is the index of a Megatron file: --from megatron, with NAME.bin beside it";
  if (begins(std::string_view("TNTIDX\0", 7)))
    return "is an index of Megatron's older form: rewrite it with tools/merge_datasets.py of Megatron-LM";
  if (begins("\x93NUMPY")) return "is a NumPy array: --from npy";
  if (first == 20240520 || first == 20240801) return "is a token file of llm.c: --from llm.c";
  if (first == 20240522) return "holds llm.c's multiple-choice questions, not text: octet eval reads them as JSONL";
  return "";
}

ForeignTokens with_header(LongRead file, const std::string& head, int64_t count, IdType type, const char* format) {
  const std::string name = file.path().string();
  if (int64_t(head.size()) < kHeaderBytes)
    bad_input("'", name, "' ends within its header (", head.size(), " bytes): fetch or make it again");
  const int64_t held = file.size() - kHeaderBytes, promised = count * bytes_of(type);
  if (count <= 0 || held != promised)
    bad_input("'", name, "': the header of ", format, " promises ", count, " tokens of ", bytes_of(type), " bytes, ",
              held, " bytes follow it instead of ", promised, ": ", held < promised ? "it is cut short; " : "",
              "fetch or make it again");
  return {std::move(file), kHeaderBytes, count, type, 0};
}

ForeignTokens open_llmc(LongRead file, const std::string& head) {
  const std::string name = file.path().string();
  const int32_t magic = head.size() >= 4 ? number_at<int32_t>(head, 0) : 0;
  if (magic != 20240520 && magic != 20240801) refuse_as("llm.c", file, head);
  if (head.size() < 12) bad_input("'", name, "' ends within its header (", head.size(), " bytes): fetch it again");
  const bool wide = magic == 20240801;
  const int32_t version = number_at<int32_t>(head, 4), expected = wide ? 7 : 1;
  if (version != expected)
    bad_input("'", name, "' has version ", version, " of llm.c's token files, of which ", expected,
              " is known: make it again with llm.c's dev/data");
  return with_header(std::move(file), head, number_at<int32_t>(head, 8), wide ? IdType::u32 : IdType::u16, "llm.c");
}

ForeignTokens open_llmq(LongRead file, const std::string& head) {
  const std::string name = file.path().string();
  if (!head.starts_with("BIN.TOK\n")) refuse_as("llm.q", file, head);
  if (head.size() < 28) bad_input("'", name, "' ends within its header (", head.size(), " bytes): make it again");
  const int32_t version = number_at<int32_t>(head, 8), width = number_at<int32_t>(head, 12);
  const int64_t count = number_at<int32_t>(head, 16);
  if (version != 1 && version != 2)
    bad_input("'", name, "' has version ", version, " of llm.q's token files, 1 and 2 are known");
  if (width != 4) bad_input("'", name, "' claims ", width, " bytes a token, llm.q writes 4: make it again");
  if (version == 2 && number_at<int32_t>(head, 24) == 1 && file.size() == kHeaderBytes + 4 * count + (count + 7) / 8)
    bad_input("'", name, "' masks the loss of some tokens, which pretraining has no use for: ",
              "make it again without masks, from the documents alone");
  ForeignTokens opened = with_header(std::move(file), head, count, IdType::i32, "llm.q");
  if (version == 2) opened.vocab_size = std::max(0, number_at<int32_t>(head, 20));
  return opened;
}

struct RawType {
  const char* name;
  IdType type;
};
constexpr std::array<RawType, 4> kRaw = {
    {{"uint16", IdType::u16}, {"uint32", IdType::u32}, {"int32", IdType::i32}, {"int64", IdType::i64}}};

}  // namespace

int64_t bytes_of(IdType type) { return int64_t(1) << (int(type) / 2); }

std::vector<std::string> foreign_formats() {
  std::vector<std::string> names = {"llm.c", "llm.q", "megatron", "npy"};
  for (const RawType& raw : kRaw) names.push_back(raw.name);
  return names;
}

void refuse_as(const std::string& format, const LongRead& file, const std::string& head) {
  const std::string name = file.path().string(), kind = kind_of(head);
  if (!kind.empty()) bad_input("'", name, "' ", kind);
  if (is_packed(head)) bad_input("'", name, "' is compressed: unpack it first");
  bad_input("'", name, "' does not begin as a file of ", format, ": name its format with --from");
}

void ForeignTokens::read(int64_t first, std::span<int32_t> out, int64_t vocab) const {
  CHECK(first >= 0 && int64_t(out.size()) <= count && first <= count - int64_t(out.size()));
  const int64_t width = bytes_of(type);
  std::string raw(out.size() * size_t(width), '\0');
  file.read(offset + first * width, raw.data(), int64_t(raw.size()));
  switch (type) {
    case IdType::u8:
      return widen<uint8_t>(raw, out, *this, first, vocab);
    case IdType::i8:
      return widen<int8_t>(raw, out, *this, first, vocab);
    case IdType::u16:
      return widen<uint16_t>(raw, out, *this, first, vocab);
    case IdType::i16:
      return widen<int16_t>(raw, out, *this, first, vocab);
    case IdType::u32:
      return widen<uint32_t>(raw, out, *this, first, vocab);
    case IdType::i32:
      return widen<int32_t>(raw, out, *this, first, vocab);
    case IdType::u64:
      return widen<uint64_t>(raw, out, *this, first, vocab);
    case IdType::i64:
      return widen<int64_t>(raw, out, *this, first, vocab);
  }
}

ForeignTokens open_ids(LongRead file, IdType type) {
  const int64_t width = bytes_of(type), bytes = file.size();
  if (bytes == 0) bad_input("'", file.path().string(), "' is empty: name a file of tokens");
  if (bytes % width != 0)
    bad_input("'", file.path().string(), "' has ", bytes, " bytes, no multiple of the ", width,
              " of an id: it is cut short, or its ids are of another type");
  return {std::move(file), 0, bytes / width, type, 0};
}

ForeignTokens open_foreign(const std::string& format, const std::filesystem::path& path) {
  LongRead file(path);
  std::string head(size_t(std::min(file.size(), kHeaderBytes)), '\0');
  file.read(0, head.data(), int64_t(head.size()));
  if (format == "llm.c") return open_llmc(std::move(file), head);
  if (format == "llm.q") return open_llmq(std::move(file), head);
  if (format == "npy") return open_npy(std::move(file), head);
  for (const RawType& raw : kRaw)
    if (format == raw.name) {
      if (!kind_of(head).empty()) refuse_as(format, file, head);
      return open_ids(std::move(file), raw.type);
    }
  const std::vector<std::string> known = foreign_formats();
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
  bad_input("--from ", format.substr(0, 80), ": known are ", names, did_you_mean(format.substr(0, 80), known));
}

}  // namespace octet
