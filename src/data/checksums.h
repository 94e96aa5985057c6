#pragma once
// Checksums of a checkpoint's files, in its checksums.json: file -> a sum, or for a file of tensors
// tensor -> a sum. A tensor's sum is over its elements, each mixed with its place, modulo 2^64: ranks that write slices
// of it add up theirs, in any order, and any changed, moved or lost element shows. It protects against faults, not
// against forgery.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/safetensors.h"

namespace octet {

inline constexpr const char* kChecksumFile = "checksums.json";

// Of elements [first, …) of `element_bytes` each; of a whole tensor first is 0.
uint64_t checksum(std::span<const std::byte> elements, size_t element_bytes, int64_t first = 0);

class Checksums {
 public:
  void add(const std::string& file, const std::string& tensor, uint64_t sum) { tensors_[file][tensor] += sum; }
  void add_file(const std::filesystem::path& path);     // a small one, read whole; under its name without folders
  void add_tensors(const std::filesystem::path& path);  // of a safetensors file, read whole
  bool has(const std::string& file) const { return tensors_.contains(file) || files_.contains(file); }
  void write(const std::filesystem::path& folder) const;

 private:
  std::map<std::string, std::map<std::string, uint64_t>> tensors_;
  std::map<std::string, uint64_t> files_;
};

// checksums.json of a checkpoint, for code that reads the files itself. InputError: octet did not write it.
class SavedChecksums {
 public:
  // text: what stands in the file, which may have been read by another rank.
  SavedChecksums(const std::filesystem::path& folder, const std::string& text);
  std::optional<uint64_t> of(const std::string& file, const std::string& tensor) const;  // none if it names no such
  bool agrees(const std::filesystem::path& path) const;  // with a small file, read whole; also if it names none
  std::vector<std::string> files() const;                // all that it names, with tensors or without

 private:
  std::map<std::string, std::map<std::string, uint64_t>> tensors_;
  std::map<std::string, uint64_t> files_;
};

struct ChecksumReport {
  int64_t compared = 0;                // tensors, and files without tensors
  std::vector<std::string> different;  // "model.safetensors: model.norm.weight"; also what is missing or new
};
bool has_checksums(const std::filesystem::path& folder);
// Reads all that checksums.json names. progress: bytes read so far.
ChecksumReport verify_checksums(const std::filesystem::path& folder, const std::function<void(int64_t)>& progress = {});

}  // namespace octet
