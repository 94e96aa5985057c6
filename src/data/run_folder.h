#pragma once
// A run's folder of checkpoints, written by one run at a time: two runs that save the same step would mix their files.
#include <filesystem>
#include <string>

namespace octet {

// Makes the folder and holds it until the end of the object, or of the process however it ends. InputError: another
// run holds it, or it cannot be made. What an interrupted save left there (.saving-N, .replaced-step-N,
// .removing-step-N) is cleaned up.
class RunFolder {
 public:
  explicit RunFolder(const std::filesystem::path& folder);
  RunFolder(const RunFolder&) = delete;
  ~RunFolder();
  const std::string& mark() const { return mark_; }  // what this run has written there; "": it could not

 private:
  int fd_ = -1;
  std::string mark_;
};

// InputError: `folder` is not, for this process, the folder that another node's RunFolder has marked, or it may not
// write there. What the first save would fail on, hours later.
void require_marked(const std::filesystem::path& folder, const std::string& mark);

// Removes a checkpoint: first its file COMPLETE and its name, so that a half-removed one is never taken for a
// checkpoint; the next run that holds the folder removes what is left. Of a symbolic link only the link is removed.
std::error_code remove_checkpoint(const std::filesystem::path& folder);

// `staged` becomes `final` in one step; what stood there is removed afterwards, never before.
void replace_folder(const std::filesystem::path& staged, const std::filesystem::path& final);

}  // namespace octet
