#pragma once
// Files that are either whole or absent: read-only mappings, and writes that appear under their name only when
// complete. What the user can fix (no such file or folder, no permission) is an InputError, what the machine refuses (a
// full disk, an I/O error) a SystemError. Both name the file.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// A whole file mapped read-only, for a short time; LongRead is for longer ones. An empty file gives empty bytes.
class MappedFile {
 public:
  enum class Access { sequential, random };
  explicit MappedFile(const std::filesystem::path& path, Access access = Access::random);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::string_view bytes() const { return {data_, size_}; }
  int64_t size() const { return int64_t(size_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const char* data_ = nullptr;
  size_t size_ = 0;
};

// A file that is read in pieces for as long as a run lasts, from any thread. If it is truncated meanwhile or its disk
// fails, reading it throws a SystemError, where a mapping would end the program with SIGBUS. Replacing it by another
// file of the same name does no harm.
class LongRead {
 public:
  explicit LongRead(const std::filesystem::path& path);
  LongRead(LongRead&& other) noexcept;
  LongRead& operator=(LongRead&&) = delete;
  ~LongRead();

  int64_t size() const { return size_; }  // when it was opened
  const std::filesystem::path& path() const { return path_; }
  void read(int64_t offset, void* to, int64_t bytes) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// Writes to NAME.tmp in constant memory, as its only writer (a second one gets an InputError); commit() flushes,
// fsyncs, renames it to NAME and fsyncs the folder. Without commit() the temporary file is removed, and an existing
// NAME stays as it was. If NAME is a symbolic link, its target is written. If it exists and is not a regular file (a
// pipe), or lies in /dev (/dev/stdout), it is written directly.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);
  FileWriter(const FileWriter&) = delete;
  ~FileWriter();

  void write(const void* data, int64_t bytes);
  void write(std::string_view text) { write(text.data(), int64_t(text.size())); }
  void overwrite(int64_t offset, const void* data, int64_t bytes);  // in what was already written
  int64_t written() const { return written_; }
  void commit();
  const std::filesystem::path& path() const { return path_; }

 private:
  void flush();
  std::filesystem::path path_, temp_;  // temp_ is empty when NAME is written directly
  std::string buffer_;
  int fd_ = -1;
  int64_t written_ = 0;
};

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, std::string_view contents);  // by a FileWriter

// InputError if `output` is one of the input files, as writing would destroy it.
void keep_inputs(const std::filesystem::path& output, const std::vector<std::string>& inputs);
void append_to_file(const std::filesystem::path& path, std::string_view text);  // all or nothing; creates it

// For staging a folder of files: first the data is made durable, then the folder's entries, then its name.
void sync_path(const std::filesystem::path& path);                                        // a file or a folder
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);  // and syncs to's folder
void make_folders(const std::filesystem::path& path);
// The target of a chain of links, whether it exists or not: a rename would replace the link itself.
std::filesystem::path followed(const std::filesystem::path& name);

}  // namespace octet
