#include "data/checksums.h"

#include <charconv>
#include <cstdio>
#include <cstring>
#include <set>

#include "base/json.h"
#include "base/rng.h"

namespace octet {
namespace {
namespace fs = std::filesystem;
constexpr uint64_t kPlaces =
    0x9e3779b97f4a7c15;  // odd and without a pattern: no place is another one's plus a small number
constexpr int64_t kChunk = int64_t{1} << 22;  // elements between reports of progress

std::string hexadecimal(uint64_t sum) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(sum));
  return text;
}

uint64_t read_sum(const json& value, const std::string& where) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  uint64_t sum = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size())
    bad_input(where, ": ", show(value), " is not a checksum; the checkpoint is damaged");
  return sum;
}

template <class Bits>
uint64_t sum_of(std::span<const std::byte> elements, uint64_t place) {
  uint64_t sum = 0;
  for (size_t i = 0; i < elements.size(); i += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, elements.data() + i, sizeof bits);
    sum += mix(bits + kPlaces * ++place);
  }
  return sum;
}

using Progressed = std::function<void(int64_t)>;
uint64_t tensor_sum(const SafetensorsFile& file, const SafetensorsFile::Entry& e, int64_t& done,
                    const Progressed& tell) {
  const size_t element = size_t(stored_size(e.dtype));
  const std::span<const std::byte> all(file.data(e), e.bytes);
  uint64_t sum = 0;
  for (int64_t i = 0; i < e.numel(); i += kChunk) {
    const size_t count = size_t(std::min(kChunk, e.numel() - i));
    sum += checksum(all.subspan(size_t(i) * element, count * element), element, i);
    done += int64_t(count * element);
    if (tell) tell(done);
  }
  return sum;
}

uint64_t file_sum(const fs::path& path) {
  const MappedFile file(path, MappedFile::Access::sequential);
  return checksum(std::as_bytes(std::span(file.bytes())), 1);
}

json sums_in(const std::string& text, const std::string& where) {
  json all = parse_json(text, where);
  if (!all.is_object()) bad_input(where, ": not an object; it was not written by octet");
  return all;
}

}  // namespace

uint64_t checksum(std::span<const std::byte> elements, size_t element_bytes, int64_t first) {
  const uint64_t place = uint64_t(first);
  switch (element_bytes) {
    case 1:
      return sum_of<uint8_t>(elements, place);
    case 2:
      return sum_of<uint16_t>(elements, place);
    case 4:
      return sum_of<uint32_t>(elements, place);
    case 8:
      return sum_of<uint64_t>(elements, place);
  }
  fail(__FILE__, __LINE__, "elements of ", element_bytes, " bytes");
}

void Checksums::add_file(const fs::path& path) { files_[path.filename().string()] = file_sum(path); }

void Checksums::add_tensors(const fs::path& path) {
  const SafetensorsFile file(path);
  int64_t done = 0;
  for (const auto& e : file.entries()) add(path.filename().string(), e.name, tensor_sum(file, e, done, {}));
}

void Checksums::write(const fs::path& folder) const {
  json all = json::object();
  for (const auto& [file, tensors] : tensors_)
    for (const auto& [tensor, sum] : tensors) all[file][tensor] = hexadecimal(sum);
  for (const auto& [file, sum] : files_) all[file] = hexadecimal(sum);
  write_file(folder / kChecksumFile, all.dump(1) + "\n");
}

bool has_checksums(const fs::path& folder) { return fs::exists(folder / kChecksumFile); }

SavedChecksums::SavedChecksums(const fs::path& folder, const std::string& text) {
  const std::string where = (folder / kChecksumFile).string();
  const json all = sums_in(text, where);
  for (const auto& [file, sums] : all.items()) {
    if (!sums.is_object()) files_[file] = read_sum(sums, where);
    else
      for (const auto& [tensor, sum] : sums.items()) tensors_[file][tensor] = read_sum(sum, where);
  }
}

std::optional<uint64_t> SavedChecksums::of(const std::string& file, const std::string& tensor) const {
  const auto sums = tensors_.find(file);
  if (sums == tensors_.end()) return {};
  const auto sum = sums->second.find(tensor);
  return sum == sums->second.end() ? std::nullopt : std::optional(sum->second);
}

bool SavedChecksums::agrees(const fs::path& path) const {
  const auto sum = files_.find(path.filename().string());
  return sum == files_.end() || sum->second == file_sum(path);
}

std::vector<std::string> SavedChecksums::files() const {
  std::vector<std::string> names;
  for (const auto& [file, sums] : tensors_) names.push_back(file);
  for (const auto& [file, sum] : files_) names.push_back(file);
  return names;
}

ChecksumReport verify_checksums(const fs::path& folder, const Progressed& progress) {
  const std::string where = (folder / kChecksumFile).string();
  const json all = sums_in(read_file(where), where);
  ChecksumReport report;
  int64_t done = 0;
  for (const auto& [name, sums] : all.items()) {
    if (fs::path(name).has_parent_path()) bad_input(where, ": '", name, "' is not the name of a file next to it");
    if (!fs::exists(folder / name)) {
      ++report.compared;
      report.different.push_back(name + " is missing");
      continue;
    }
    if (!sums.is_object()) {
      ++report.compared;
      if (file_sum(folder / name) != read_sum(sums, where)) report.different.push_back(name);
      continue;
    }
    const SafetensorsFile file(folder / name);
    std::set<std::string> known;
    for (const auto& [tensor, sum] : sums.items()) {
      ++report.compared;
      known.insert(tensor);
      const SafetensorsFile::Entry* e = file.find(tensor);
      if (!e || tensor_sum(file, *e, done, progress) != read_sum(sum, where))
        report.different.push_back(concat(name, ": ", tensor, e ? "" : " is missing"));
    }
    for (const auto& e : file.entries())
      if (!known.contains(e.name)) report.different.push_back(concat(name, ": ", e.name, " was added"));
  }
  return report;
}

}  // namespace octet
