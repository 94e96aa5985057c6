#include "data/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "base/refused.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

// "process 4242 on node3", as the holder wrote it
std::string name_of_holder(int fd) {
  std::array<char, 256> text{};
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  const std::string said(text.data(), n > 0 ? size_t(n) : 0);
  return said.starts_with("process ") ? concat(" (", said.substr(0, said.find('\n')), ")") : "";
}

// The holder's name for the message above, then what no other run writes; returns it. A disk that is full for it does
// not hinder the run.
std::string write_holder(int fd) {
  std::array<char, 128> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::string text = concat("process ", ::getpid(), " on ", host.data(), "\n", now, "\n");
  const bool written = ::ftruncate(fd, 0) == 0 && ::pwrite(fd, text.data(), text.size(), 0) == ssize_t(text.size()) &&
                       ::fsync(fd) == 0;  // other nodes read it
  return written ? text : "";
}

constexpr std::string_view kSaving = ".saving-", kReplaced = ".replaced-", kRemoving = ".removing-";

// Leftovers of interrupted saves. One that cannot be removed does no harm.
void clear_rests(const fs::path& folder) {
  std::error_code none;
  std::vector<fs::path> rests;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    for (const std::string_view kind : {kSaving, kReplaced, kRemoving})
      if (name.starts_with(kind)) rests.push_back(entry.path());
  }
  for (const fs::path& rest : rests) {
    const std::string name = rest.filename().string();
    const fs::path final = folder / name.substr(name.starts_with(kReplaced) ? kReplaced.size() : name.size());
    if (name.starts_with(kReplaced) && !fs::exists(final, none))
      fs::rename(rest, final, none);  // the new one was never put in its place
    else fs::remove_all(rest, none);
  }
}

}  // namespace

RunFolder::RunFolder(const fs::path& folder) {
  make_folders(folder);
  const fs::path path = folder / ".lock";
  do fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) refused_path("write", path, errno);
  int held;
  do held = ::flock(fd_, LOCK_EX | LOCK_NB);
  while (held != 0 && errno == EINTR);
  if (held != 0 && errno == EWOULDBLOCK) {
    const std::string holder = name_of_holder(fd_);
    ::close(fd_);
    bad_input("checkpoint.dir ", folder.string(), ": another run", holder,
              " writes its checkpoints there: end that one, or give this run a checkpoint.dir of its own");
  }
  if (held != 0) {
    log_warning(folder.string(), " cannot be locked (", std::strerror(errno),
                "): make sure that no other run writes its checkpoints there");
    return;  // and then nobody knows whose leftovers there are
  }
  mark_ = write_holder(fd_);
  clear_rests(folder);
}

RunFolder::~RunFolder() {
  if (fd_ >= 0) ::close(fd_);
}

void require_marked(const fs::path& folder, const std::string& mark) {
  const fs::path path = folder / ".lock";
  int fd;
  do fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  while (fd < 0 && errno == EINTR);
  if (fd < 0 && errno != ENOENT && errno != ENOTDIR) refused_path("write", path, errno);
  std::string found(mark.size(), '\0');
  const bool same = fd >= 0 && ::pread(fd, found.data(), found.size(), 0) == ssize_t(found.size()) && found == mark;
  if (fd >= 0) ::close(fd);
  if (!same)
    bad_input(
        "checkpoint.dir ", folder.string(),
        " is not on this node the folder that rank 0 sees: all ranks write parts of the same files: name a folder "
        "on a file system that all nodes share");
}

std::error_code remove_checkpoint(const fs::path& folder) {
  const fs::path doomed = folder.parent_path() / concat(kRemoving, folder.filename().string());
  std::error_code error, none;
  if (!fs::is_symlink(folder, none)) fs::remove(folder / "COMPLETE", error);  // from here on it is not a checkpoint
  if (error) return error;
  fs::remove_all(doomed, none);  // of the same step, before
  fs::rename(folder, doomed, error);
  fs::remove_all(error ? folder : doomed, error);
  return error;
}

void replace_folder(const fs::path& staged, const fs::path& final) {
  std::error_code none;
  if (!fs::exists(fs::symlink_status(final, none))) return rename_durably(staged, final);
  const fs::path replaced = final.parent_path() / concat(kReplaced, final.filename().string());
  if (::renameat2(AT_FDCWD, staged.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) {
    sync_path(final.parent_path());
    fs::remove_all(staged, none);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
    refused_path("rename a temporary folder to", final, errno);
  // A file system that cannot exchange two names (NFS): what a crash between these two leaves, clear_rests() undoes.
  fs::remove_all(replaced, none);
  rename_durably(final, replaced);
  rename_durably(staged, final);
  fs::remove_all(replaced, none);
}

}  // namespace octet
