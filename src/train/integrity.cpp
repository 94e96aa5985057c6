#include "train/integrity.h"

#include <map>
#include <utility>

#include "base/files.h"
#include "base/log.h"
#include "data/checkpoints.h"
#include "train/checkpoint_files.h"
#include "train/same_run.h"

namespace octet::BACKEND {
namespace {

template <class... Parts>
[[noreturn]] void damaged(const std::filesystem::path& folder, const std::string& file, const Parts&... parts) {
  bad_input((folder / file).string(), ": ", parts..., ", so the checkpoint is damaged: copy it again, or ",
            instead_of(folder), ". If you have changed it on purpose, remove its ", kChecksumFile);
}

void compare_file(const SavedChecksums& saved, const std::filesystem::path& folder, const std::string& file) {
  if (!saved.agrees(folder / file)) damaged(folder, file, "its checksum is not that in ", kChecksumFile);
}

void compare_small_files(const SavedChecksums& saved, const std::filesystem::path& folder) {
  for (const std::string& file : saved.files()) {
    if (!std::filesystem::exists(folder / file)) damaged(folder, file, "it is missing");
    if (!is_fp8_of_another_rank(file)) compare_file(saved, folder, file);  // those are read by whose they are
  }
}

// Before the others hear of anything: they would fail at the same place in words of their own.
std::optional<SavedChecksums> read_saved(const std::filesystem::path& folder, Host& host) {
  std::string text;
  if (host.rank() == 0 && has_checksums(folder)) {
    try {
      text = read_file(folder / kChecksumFile);
      const SavedChecksums readable(folder, text);
    } catch (const InputError& e) { bad_input(e.what(), ": copy the checkpoint again, or ", instead_of(folder)); }
    compare_small_files(SavedChecksums(folder, text), folder);
  }
  text = of_rank_0(host, text);
  if (!text.empty()) return SavedChecksums(folder, text);
  if (host.rank() == 0) log_warning(folder.string(), " has no ", kChecksumFile, ": it cannot be checked for damage");
  return {};
}

}  // namespace

Integrity::Integrity(Host& host, std::filesystem::path folder)
    : host_(host), folder_(std::move(folder)), saved_(read_saved(folder_, host)) {}

void Integrity::add(const std::string& file, const std::string& tensor, const Read& read) {
  parts_.push_back({file, tensor});
  reads_.push_back(read);
}

void Integrity::compare() const {
  if (!saved_) return;
  const size_t R = size_t(host_.size()), n = parts_.size();
  std::vector<Read> all(R * n);
  host_.all_gather(all.data(), reads_.data(), n * sizeof(Read));
  for (size_t i = 0; i < n; ++i) {
    const auto& [file, tensor] = parts_[i];
    uint64_t sum = 0;
    std::map<std::pair<int64_t, int64_t>, size_t> owner;  // of a slice: the rank that counts
    for (size_t r = 0; r < R; ++r)
      if (const Read& one = all[r * n + i]; one.counts) {
        sum += one.sum;
        owner.emplace(std::pair(one.first, one.count), r);
      }
    for (size_t r = 0; r < R; ++r) {  // a replica of the slice, read apart
      const Read& one = all[r * n + i];
      const auto o = owner.find({one.first, one.count});
      if (!one.counts && o != owner.end() && all[o->second * n + i].sum != one.sum)
        damaged(folder_, file, tensor, " is not on rank ", r, " what it is on rank ", o->second);
    }
    const std::optional<uint64_t> saved = saved_->of(file, tensor);
    if (!saved) damaged(folder_, file, kChecksumFile, " has no checksum of ", tensor);
    if (*saved != sum) damaged(folder_, file, "the checksum of ", tensor, " is not that in ", kChecksumFile);
  }
}

void Integrity::compare_file(const std::string& file) const {
  if (saved_) BACKEND::compare_file(*saved_, folder_, file);
}

}  // namespace octet::BACKEND
