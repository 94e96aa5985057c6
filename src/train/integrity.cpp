#include "train/integrity.h"

#include "base/log.h"
#include "data/checkpoints.h"

namespace octet::BACKEND {
namespace {

std::optional<SavedChecksums> read_saved(const std::filesystem::path& folder, const Host& host) {
  if (has_checksums(folder)) try {
      return SavedChecksums(folder);
    } catch (const InputError& e) { bad_input(e.what(), ": copy the checkpoint again, or ", instead_of(folder)); }
  if (host.rank() == 0)
    log_warning(folder.string(), " has no ", kChecksumFile, ": whether it is still what was saved is not known");
  return {};
}

template <class... Parts>
[[noreturn]] void damaged(const std::filesystem::path& folder, const std::string& file, const Parts&... parts) {
  bad_input((folder / file).string(), ": ", parts..., ", so the checkpoint is damaged: copy it again, or ",
            instead_of(folder), ". If you have changed it on purpose, remove its ", kChecksumFile);
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
    for (size_t r = 0; r < R; ++r) {
      const Read& one = all[r * n + i];
      if (one.counts) sum += one.sum;
      for (size_t o = 0; o < r && !one.counts; ++o)  // a replica of the slice, read apart
        if (const Read& other = all[o * n + i]; other.counts && other.first == one.first && other.count == one.count)
          if (other.sum != one.sum) damaged(folder_, file, tensor, " is not on rank ", r, " what it is on rank ", o);
    }
    const std::optional<uint64_t> saved = saved_->of(file, tensor);
    if (!saved) damaged(folder_, file, kChecksumFile, " has no checksum of ", tensor);
    if (*saved != sum) damaged(folder_, file, "the checksum of ", tensor, " is not that in ", kChecksumFile);
  }
}

void Integrity::compare_file(const std::string& file) const {
  if (saved_ && !saved_->agrees(folder_ / file)) damaged(folder_, file, "its checksum is not that in ", kChecksumFile);
}

}  // namespace octet::BACKEND
