#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/refused.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
constexpr size_t kBufferBytes = size_t(1) << 20;

int open_or_throw(const fs::path& path, int flags, const char* verb) {
  // A pipe that nobody writes would hold it for ever; of a file on a disk this changes nothing.
  if ((flags & O_ACCMODE) == O_RDONLY) flags |= O_NONBLOCK;
  int fd;
  do fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  while (fd < 0 && errno == EINTR);
  if (fd < 0 && (flags & O_ACCMODE) == O_RDONLY && is_wrong_name(errno))
    bad_input("cannot ", verb, " '", path.string(), "': ", std::strerror(errno),
              ": check the name and its permissions");
  if (fd < 0) refused_path(verb, path, errno);
  return fd;
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

// /dev/stdout may lead to a regular file; a rename would replace the name that all programs share.
bool is_device(const fs::path& path) {
  const std::string name = fs::absolute(path).lexically_normal().string();
  return (name.starts_with("/dev/") && !name.starts_with("/dev/shm/")) || name.starts_with("/proc/");
}

struct Closer {
  int fd;
  ~Closer() {
    if (fd >= 0) ::close(fd);
  }
};

int64_t size_of_regular(int fd, const fs::path& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0) refused_path("read", path, errno);
  if (S_ISDIR(info.st_mode)) bad_input("'", path.string(), "' is a folder: name a file");
  if (!S_ISREG(info.st_mode)) bad_input("'", path.string(), "' is not a regular file: name a file on a disk");
  return info.st_size;
}

// Opens and locks the temporary file of a name: two writers would mix their bytes.
int open_alone(const fs::path& temp, const fs::path& name) {
  while (true) {
    const int fd = open_or_throw(temp, O_WRONLY | O_CREAT, "write");
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {  // other errors: a file system without locks
      ::close(fd);
      bad_input("cannot write '", name.string(),
                "': another process is writing it: wait until it ends, or give another name");
    }
    struct stat mine, there;
    const bool same = ::fstat(fd, &mine) == 0 && ::stat(temp.c_str(), &there) == 0 && mine.st_ino == there.st_ino &&
                      mine.st_dev == there.st_dev;
    if (same && ::ftruncate(fd, 0) == 0) return fd;
    const int error = errno;
    ::close(fd);
    if (same) refused_path("write", temp, error);
    // otherwise the other writer finished between our open and our lock, and this is no longer the temporary file
  }
}

void pwrite_all(int fd, const char* data, size_t bytes, int64_t offset, bool seekable, const fs::path& path) {
  while (bytes > 0) {
    const ssize_t n = seekable ? ::pwrite(fd, data, bytes, offset) : ::write(fd, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refused_path("write", path, errno);
    data += n;
    bytes -= size_t(n);
    offset += n;
  }
}

}  // namespace

void refused_path(const char* verb, const fs::path& path, int error) {
  const char* remedy = "";
  bool user = true;  // an impossible name, or a place where this user may not write
  switch (error) {
    case ENOENT:
      remedy = ": create its folder first";
      break;
    case ENOTDIR:
      remedy = ": a part of it is a file, not a folder; name another place";
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      remedy = ": check its permissions, or name another place";
      break;
    case EISDIR:
    case ENOTEMPTY:
    case EEXIST:
      remedy = ": something else stands there; name another place";
      break;
    case ENAMETOOLONG:
    case ELOOP:
      remedy = ": name another place";
      break;
    case ENOSPC:
    case EDQUOT:
      remedy = ": free some space there, or name a folder on another disk";
      user = false;
      break;
    case EFBIG:
      remedy = ": raise the limit of a file's size (ulimit -f), or name a folder on another file system";
      user = false;
      break;
    case EMFILE:
      remedy = ": raise the limit of open files (ulimit -n), or name fewer files";
      user = false;
      break;
    case ENFILE:
      remedy = ": all processes of the machine together hold too many (sysctl fs.file-max)";
      user = false;
      break;
    case ESTALE:
      remedy = ": it was replaced or removed on its server while it was in use; start again";
      [[fallthrough]];
    default:
      user = false;
  }
  const std::string text = concat("cannot ", verb, " '", path.string(), "': ", std::strerror(error), remedy);
  if (user) throw InputError(text);
  throw SystemError(text);
}

bool is_wrong_name(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case ENAMETOOLONG:
    case ELOOP:
    case EINVAL:
    case ENXIO:  // a socket, or a device that is not there
    case ENODEV:
      return true;
    default:
      return false;
  }
}

fs::path followed(const fs::path& name) {
  constexpr int kMost = 40;  // as many as the kernel follows
  fs::path path = name;
  std::error_code none;
  for (int i = 0; fs::is_symlink(path, none); ++i) {
    if (i == kMost) refused_path("write", name, ELOOP);
    path = path.parent_path() / fs::read_symlink(path);
  }
  return path;
}

MappedFile::MappedFile(const fs::path& path, Access access) : path_(path) {
  const Closer file{open_or_throw(path, O_RDONLY, "read")};
  size_ = size_t(size_of_regular(file.fd, path));
  if (size_ == 0) return;  // mmap refuses a length of zero
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd, 0);
  if (data == MAP_FAILED) refused_path("map", path, errno);
  data_ = static_cast<const char*>(data);
  if (access == Access::sequential) ::madvise(data, size_, MADV_SEQUENTIAL);  // a hint: a refusal changes nothing
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<char*>(data_), size_);
}

// A run may read thousands of files. The usual limit of 1024 descriptors is a soft one, which a process may raise.
static void allow_more_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // if that fails, opening a file will report it
}

LongRead::LongRead(const fs::path& path) : path_(path) {
  allow_more_files();
  Closer file{open_or_throw(path, O_RDONLY, "read")};
  size_ = size_of_regular(file.fd, path);
  fd_ = std::exchange(file.fd, -1);
}

LongRead::LongRead(LongRead&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

LongRead::~LongRead() {
  if (fd_ >= 0) ::close(fd_);
}

void LongRead::read(int64_t offset, void* to, int64_t bytes) const {
  CHECK(offset >= 0 && bytes >= 0 && bytes <= size_ && offset <= size_ - bytes, "bytes [", offset, ", +", bytes,
        ") of ", path_.string());
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(fd_, static_cast<char*>(to) + done, size_t(bytes - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refused_path("read", path_, errno);
    if (n == 0)
      throw SystemError(concat("'", path_.string(), "' shrank from ", size_, " to ", size_of_regular(fd_, path_),
                               " bytes while it was in use: restore the whole file and start again; to replace a "
                               "file in use, rename the new one to its name"));
    done += n;
  }
}

FileWriter::FileWriter(fs::path path) : path_(std::move(path)) {
  std::error_code ignored;
  if (fs::is_directory(path_, ignored)) bad_input("cannot write '", path_.string(), "': it is a folder: name a file");
  const bool direct = is_device(path_) || (fs::exists(path_, ignored) && !fs::is_regular_file(path_, ignored));
  if (!direct) path_ = followed(path_), temp_ = path_.string() + ".tmp";
  // Devices and pipes are appended to, after what the shell's > or >> left there.
  fd_ = direct ? open_or_throw(path_, O_WRONLY | O_APPEND, "write") : open_alone(temp_, path_);
  buffer_.reserve(kBufferBytes);
}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  if (!temp_.empty()) ::unlink(temp_.c_str());  // while we still hold its lock
  ::close(fd_);
}

void FileWriter::write(const void* data, int64_t bytes) {
  CHECK(fd_ >= 0 && bytes >= 0);
  const char* from = static_cast<const char*>(data);
  if (buffer_.size() + size_t(bytes) > kBufferBytes) flush();
  if (size_t(bytes) > kBufferBytes) {
    pwrite_all(fd_, from, size_t(bytes), written_, !temp_.empty(), path_);
  } else {
    buffer_.append(from, size_t(bytes));
  }
  written_ += bytes;
}

void FileWriter::overwrite(int64_t offset, const void* data, int64_t bytes) {
  CHECK(fd_ >= 0 && offset >= 0 && bytes >= 0 && offset + bytes <= written_);
  flush();
  if (temp_.empty()) bad_input("cannot write '", path_.string(), "' in place: name a regular file");
  pwrite_all(fd_, static_cast<const char*>(data), size_t(bytes), offset, true, path_);
}

void FileWriter::flush() {
  pwrite_all(fd_, buffer_.data(), buffer_.size(), written_ - int64_t(buffer_.size()), !temp_.empty(), path_);
  buffer_.clear();
}

void FileWriter::commit() {
  flush();
  // Some file systems report a full disk only here, or on close.
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) refused_path("write", path_, errno);
  const Closer ours{::dup(fd_)};  // keeps the lock until the file has its name
  if (::close(std::exchange(fd_, -1)) != 0) {
    const int error = errno;
    if (!temp_.empty()) ::unlink(temp_.c_str());
    refused_path("write", path_, error);
  }
  if (!temp_.empty()) rename_durably(temp_, path_);
}

std::string read_file(const fs::path& path) {
  return std::string(MappedFile(path, MappedFile::Access::sequential).bytes());
}

void write_file(const fs::path& path, std::string_view contents) {
  FileWriter file(path);
  file.write(contents);
  file.commit();
}

void keep_inputs(const fs::path& output, const std::vector<std::string>& inputs) {
  std::error_code none;
  for (const std::string& input : inputs)
    if (fs::is_regular_file(input, none) && fs::equivalent(output, input, none))
      bad_input("cannot write '", output.string(), "': it is also an input and would be lost: give another name");
}

void append_to_file(const fs::path& path, std::string_view text) {
  const Closer file{open_or_throw(path, O_WRONLY | O_CREAT | O_APPEND, "write")};
  struct stat before {};
  const bool regular = ::fstat(file.fd, &before) == 0 && S_ISREG(before.st_mode);
  try {
    pwrite_all(file.fd, text.data(), text.size(), 0, false, path);
  } catch (...) {
    if (regular && ::ftruncate(file.fd, before.st_size) != 0) std::perror("octet");
    throw;
  }
}

void sync_path(const fs::path& path) {
  const Closer file{open_or_throw(path, O_RDONLY, "sync")};
  if (::fsync(file.fd) != 0 && errno != EINVAL) refused_path("sync", path, errno);  // EINVAL: nothing to sync there
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) refused_path("rename a temporary file to", to, errno);
  sync_path(folder_of(to));
}

void make_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) refused_path("create", path, error.value());
}

}  // namespace octet
