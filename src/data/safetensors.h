#pragma once
// Safetensors files, read by mapping them: 8 bytes N (little-endian), N bytes of JSON (name -> dtype, shape, offsets),
// then the tensors, back to back. Nothing in a file is trusted: anything wrong is an InputError that names the
// file, the tensor, the fault and the remedy. Reading is safe from several threads.
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "tensor/tensor.h"

namespace octet {

int64_t stored_size(std::string_view dtype);  // bytes of an element of "F32", "BF16", …; 0 if there is no such type
const char* stored_name(DType);               // how a safetensors file names our types
std::string to_string(const std::vector<int64_t>& shape);  // "[128, 32]"

class SafetensorsFile {
 public:
  struct Entry {
    std::string name, dtype;  // dtype as stored: F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 I32 I16 I8 U64 U32 U16 U8 BOOL
    std::vector<int64_t> shape;
    size_t offset = 0, bytes = 0;  // offset: from the start of the file
    int64_t numel() const { return int64_t(bytes) / stored_size(dtype); }
  };

  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<Entry>& entries() const { return entries_; }  // in the order of their bytes
  const Entry* find(std::string_view name) const;                 // null if absent
  const Entry& at(std::string_view name) const;                   // an InputError if absent
  const std::byte* data(const Entry& e) const;                    // not necessarily aligned
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Elements [first, first + count) of e, converted: to float and double from any float type (rounding to nearest where
  // narrower), to int32 from any integer type that holds no larger value there.
  void read(const Entry& e, int64_t first, int64_t count, float* dst) const;
  void read(const Entry& e, int64_t first, int64_t count, double* dst) const;
  void read(const Entry& e, int64_t first, int64_t count, int32_t* dst) const;
  template <class T>
  std::vector<T> read_all(std::string_view name) const {
    const Entry& e = at(name);
    std::vector<T> values(static_cast<size_t>(e.numel()));
    read(e, 0, e.numel(), values.data());
    return values;
  }

 private:
  void read_header();
  void check_layout() const;
  template <class To>
  void convert(const Entry& e, int64_t first, int64_t count, To* dst) const;

  MappedFile file_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> index_;  // name -> place in entries_
  std::map<std::string, std::string> metadata_;
};

// All files of one model: a file, or a folder with model.safetensors or with shards and model.safetensors.index.json.
class SafetensorsModel {
 public:
  explicit SafetensorsModel(const std::filesystem::path& folder_or_file);

  struct Place {
    const SafetensorsFile* file = nullptr;
    const SafetensorsFile::Entry* entry = nullptr;
    explicit operator bool() const { return entry != nullptr; }
  };
  Place find(std::string_view name) const;  // empty if absent
  Place at(std::string_view name) const;    // an InputError if absent
  template <class T>
  void read(Place p, int64_t first, int64_t count, T* dst) const {
    p.file->read(*p.entry, first, count, dst);
  }

  const std::filesystem::path& path() const { return path_; }
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  template <class F>
  void for_each(F&& f) const {  // f(Place), by name
    for (const auto& [name, place] : places_) f(place);
  }

 private:
  void add(const std::filesystem::path& path);
  void read_index(const std::filesystem::path& index);

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace octet
