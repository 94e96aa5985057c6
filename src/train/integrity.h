#pragma once
// Whether a checkpoint is still what was saved: what the ranks have read of it, against its checksums.json. Each rank
// sums what it reads; the slices of all add up to whole tensors (data/checksums.h).
#include <filesystem>
#include <optional>
#include <vector>

#include "data/checksums.h"
#include "host/host.h"

namespace octet::BACKEND {

class Integrity {
 public:
  struct Read {
    uint64_t sum = 0;
    int64_t first = 0, count = 0;  // elements of the tensor
    bool counts = false;           // this rank is the first of those that hold the slice
  };
  // A checkpoint without checksums.json is not compared; rank 0 warns. Rank 0 reads checksums.json for all, so that no
  // node's view of the folder splits them, and looks that no file is missing and no small one was changed.
  Integrity(Host& host, std::filesystem::path folder);
  void add(const std::string& file, const std::string& tensor, const Read& read);  // in the same order on all ranks
  // InputError that names the file, and says what to take instead.
  void compare() const;  // what was added, on all ranks together
  void compare_file(const std::string& file) const;

 private:
  struct Part {
    std::string file, tensor;
  };
  Host& host_;
  std::filesystem::path folder_;
  std::optional<SavedChecksums> saved_;
  std::vector<Part> parts_;
  std::vector<Read> reads_;  // of parts_
};

}  // namespace octet::BACKEND
