#include "data/safetensors_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/files.h"
#include "base/refused.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kChunk = 1 << 15;  // elements converted at a time
}  // namespace

SafetensorsWriter::SafetensorsWriter(fs::path path, const std::vector<StoredTensor>& tensors,
                                     const std::map<std::string, std::string>& metadata, WriterRole role)
    : path_(role == WriterRole::whole ? followed(path) : std::move(path)), working_(path_), role_(role) {
  if (role_ == WriterRole::whole) working_ += ".tmp";
  const std::string text = header(tensors, metadata);
  try {
    open(text);
  } catch (...) {
    if (fd_ >= 0) ::close(fd_);
    if (fd_ >= 0 && role_ != WriterRole::join) ::unlink(working_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (role_ == WriterRole::whole) ::unlink(working_.c_str());
}

// Larger types come first, as the format's own library lays them out: then every tensor is aligned to its type.
std::string SafetensorsWriter::header(const std::vector<StoredTensor>& tensors,
                                      const std::map<std::string, std::string>& metadata) {
  std::vector<const StoredTensor*> order;
  for (const StoredTensor& t : tensors) order.push_back(&t);
  std::ranges::stable_sort(order, std::ranges::greater{}, [](const StoredTensor* t) { return size_of(t->dtype); });
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  int64_t end = 0;
  for (const StoredTensor* t : order) {
    int64_t numel = 1;
    for (int64_t d : t->shape) CHECK(d >= 0 && !__builtin_mul_overflow(numel, d, &numel), t->name);
    const int64_t begin = std::exchange(end, end + numel * int64_t(size_of(t->dtype)));
    CHECK(t->name != "__metadata__" && targets_.emplace(t->name, Target{t->dtype, numel, begin}).second,
          "two tensors are named ", t->name);
    json[t->name] = {{"dtype", stored_name(t->dtype)}, {"shape", t->shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  text.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
  for (auto& [name, target] : targets_) target.offset += int64_t(text.size());
  data_bytes_ = end;
  end_ = int64_t(text.size()) + end;
  return text;
}

void SafetensorsWriter::open(const std::string& header) {
  const bool join = role_ == WriterRole::join;
  fd_ = ::open(working_.c_str(), O_CLOEXEC | (join ? O_RDWR : O_RDWR | O_CREAT | O_TRUNC), 0666);
  if (fd_ < 0) refused_path("write", working_, errno);
  if (join) {
    std::string there(header.size(), '\0');
    struct stat info;
    if (::fstat(fd_, &info) != 0 || info.st_size != end_ ||
        ::pread(fd_, there.data(), there.size(), 0) != ssize_t(there.size()) || there != header)
      throw SystemError(concat("'", working_.string(),
                               "' is not the file that rank 0 has just made: all nodes must see the same folder, "
                               "on a shared file system that shows each what the others write"));
    return;
  }
  // Reserving the space tells now, not hours later, that the disk is too small. Not every file system can.
  if (::fallocate(fd_, 0, 0, end_) != 0) {
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR) refused_path("write", working_, errno);
    if (::ftruncate(fd_, end_) != 0) refused_path("write", working_, errno);
  }
  put(header.data(), header.size(), 0);
  // Who joins looks at the header, maybe from another node: over NFS it leaves this one with a flush, not before.
  if (role_ == WriterRole::create && ::fsync(fd_) != 0 && errno != EINVAL) refused_path("write", working_, errno);
}

const SafetensorsWriter::Target& SafetensorsWriter::target(const std::string& name, int64_t first,
                                                           int64_t count) const {
  const auto it = targets_.find(name);
  CHECK(it != targets_.end(), path_.string(), " has no tensor ", name);
  CHECK(first >= 0 && count <= it->second.numel && first <= it->second.numel - count, name, ": elements ", first,
        " to ", first + count, " of ", it->second.numel);
  return it->second;
}

template <class From>
void SafetensorsWriter::convert(const std::string& name, int64_t first, std::span<const From> src) {
  const Target& t = target(name, first, int64_t(src.size()));
  CHECK(std::is_integral_v<From> == (t.dtype == DType::i32 || t.dtype == DType::u32), name, " is stored as ",
        name_of(t.dtype));
  visit<double, float, f16, bf16, e4m3, e5m2, int32_t, uint32_t>(t.dtype, [&]<class To>() {
    if constexpr (std::is_same_v<From, To>) {
      write_bytes(name, first, std::as_bytes(src));
    } else {
      std::vector<To> buffer(std::min(src.size(), size_t(kChunk)));
      for (size_t i = 0; i < src.size(); i += buffer.size()) {
        const size_t n = std::min(buffer.size(), src.size() - i);
        // A double goes to a narrow type by way of fp32, as everywhere in octet.
        for (size_t j = 0; j < n; ++j)
          if constexpr (std::is_integral_v<From> || std::is_same_v<To, float> || std::is_same_v<To, double>)
            buffer[j] = To(src[i + j]);
          else buffer[j] = To(float(src[i + j]));
        write_bytes(name, first + int64_t(i), std::as_bytes(std::span(buffer.data(), n)));
      }
    }
  });
}

void SafetensorsWriter::write(const std::string& name, int64_t first, std::span<const float> src) {
  convert(name, first, src);
}
void SafetensorsWriter::write(const std::string& name, int64_t first, std::span<const double> src) {
  convert(name, first, src);
}
void SafetensorsWriter::write(const std::string& name, int64_t first, std::span<const int32_t> src) {
  convert(name, first, src);
}

void SafetensorsWriter::write_bytes(const std::string& name, int64_t first, std::span<const std::byte> src) {
  const auto it = targets_.find(name);
  const int64_t element = it == targets_.end() ? 1 : int64_t(size_of(it->second.dtype));
  CHECK(int64_t(src.size()) % element == 0, name, ": ", src.size(), " bytes are no whole elements");
  const Target& t = target(name, first, int64_t(src.size()) / element);
  put(src.data(), src.size(), t.offset + first * element);
  written_ += int64_t(src.size());
}

void SafetensorsWriter::put(const void* data, size_t bytes, int64_t offset) {
  CHECK(fd_ >= 0, path_.string(), " is closed");
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, from, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refused_path("write", working_, errno);
    from += n;
    bytes -= size_t(n);
    offset += n;
  }
}

void SafetensorsWriter::close() {
  CHECK(fd_ >= 0, path_.string(), " is closed");
  CHECK(role_ != WriterRole::whole || written_ == data_bytes_, path_.string(), ": ", written_, " of ", data_bytes_,
        " bytes were written");
  // Some file systems report a full disk only here, or on close.
  if (::fsync(fd_) != 0 && errno != EINVAL) refused_path("write", working_, errno);
  const int error = ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno;
  if (error && role_ == WriterRole::whole) ::unlink(working_.c_str());
  if (error) refused_path("write", working_, error);
  if (role_ == WriterRole::whole) rename_durably(working_, path_);
}

}  // namespace octet
