#include "data/megatron_index.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/check.h"

namespace octet {
namespace {

constexpr int64_t kHeaderBytes = 34, kPage = 1 << 16;
// By the code in the index, from 1 on; float64 and float32 are no ids.
constexpr std::array<IdType, 5> kTypes = {IdType::u8, IdType::i8, IdType::i16, IdType::i32, IdType::i64};
constexpr int kUint16 = 8;

template <class T>
T number_at(const std::array<char, kHeaderBytes>& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

MegatronIndex::MegatronIndex(const std::filesystem::path& path) : file_(path) {
  std::array<char, kHeaderBytes> head{};
  file_.read(0, head.data(), std::min(kHeaderBytes, file_.size()));
  const std::string begin(head.data(), 9);
  if (begin.starts_with(std::string_view("TNTIDX\0", 7)) || begin != std::string_view("MMIDIDX\0\0", 9))
    refuse_as("megatron", file_, begin);
  if (file_.size() < kHeaderBytes) damaged("ends within its header");
  const uint64_t version = number_at<uint64_t>(head, 9);
  if (version != 1) bad_input("'", path.string(), "' has version ", version, " of Megatron's indices, 1 is known");
  const int code = number_at<uint8_t>(head, 17);
  if (code != kUint16 && (code < 1 || code > int(kTypes.size())))
    bad_input("'", path.string(), "' says that its numbers are of type ", code,
              ", which is none of integers: ", "name an index of tokens");
  type_ = code == kUint16 ? IdType::u16 : kTypes[size_t(code - 1)];
  const uint64_t sequences = number_at<uint64_t>(head, 18), boundaries = number_at<uint64_t>(head, 26);
  const uint64_t rest = uint64_t(file_.size() - kHeaderBytes);
  if (boundaries < 2 || sequences < 1) damaged("has no documents");
  if (sequences > rest / 12 || boundaries > rest / 8 || 12 * sequences + 8 * boundaries > rest)
    damaged(concat("is cut short: ", sequences, " sequences and ", boundaries,
                   " boundaries of documents do not fit in ", file_.size(), " bytes"));
  if (const uint64_t more = rest - 12 * sequences - 8 * boundaries; more == sequences)
    bad_input("'", path.string(),
              "' is of a multimodal dataset (it has a mode for each sequence): ", "octet trains on text alone");
  else if (more > 0) damaged(concat("has ", more, " bytes after its end"));
  sequences_ = int64_t(sequences);
  boundaries_ = int64_t(boundaries);
  lengths_ = {.offset = kHeaderBytes, .count = sequences_};
  starts_ = {.offset = kHeaderBytes + 4 * sequences_, .count = sequences_};
  documents_ = {.offset = kHeaderBytes + 12 * sequences_, .count = boundaries_};
  const int64_t first = documents_.at(file_, 0);
  if (first != 0) damaged(concat("lets its first document begin with sequence ", first, " instead of 0"));
}

void MegatronIndex::damaged(const std::string& how) const {
  bad_input("'", file_.path().string(), "' ", how, ": copy or make it and its .bin again");
}

template <class T>
T MegatronIndex::Column<T>::at(const LongRead& file, int64_t i) {
  CHECK(i >= 0 && i < count, "number ", i, " of ", count);
  if (i < first || i >= first + int64_t(page.size())) {
    first = i;
    page.resize(size_t(std::min(kPage, count - i)));
    file.read(offset + first * int64_t(sizeof(T)), page.data(), int64_t(page.size() * sizeof(T)));
  }
  return page[size_t(i - first)];
}

int64_t MegatronIndex::bin_bytes() const {
  Column<int32_t> lengths{.offset = lengths_.offset, .count = sequences_};
  Column<int64_t> starts{.offset = starts_.offset, .count = sequences_};
  const int64_t start = starts.at(file_, sequences_ - 1), length = lengths.at(file_, sequences_ - 1);
  if (start < 0 || start > INT64_MAX / 2 || length < 0)
    damaged(concat("places its last sequence at byte ", start, " with ", length, " tokens"));
  return start + length * bytes_of(type_);
}

int64_t MegatronIndex::next_document() {
  CHECK(document_ < documents());
  const int64_t end = documents_.at(file_, ++document_);
  if (end < sequence_ || end > sequences_ || (document_ == documents() && end != sequences_))
    damaged(concat("ends document ", document_ - 1, " before sequence ", end, " of ", sequences_, ", it begins with ",
                   sequence_));
  const int64_t before = ids_;
  for (; sequence_ < end; ++sequence_) {
    const int64_t length = lengths_.at(file_, sequence_), start = starts_.at(file_, sequence_);
    if (length < 0 || start != ids_ * bytes_of(type_))
      damaged(concat("places sequence ", sequence_, " of ", length, " tokens at byte ", start,
                     ", those before it end at ", ids_ * bytes_of(type_)));
    ids_ += length;
  }
  return ids_ - before;
}

}  // namespace octet
