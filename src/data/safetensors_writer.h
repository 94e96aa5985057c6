#pragma once
// Writes a safetensors file: the header with the final offsets first, then the tensors' data in any order, from several
// threads or processes at once, each its own ranges. Nothing is buffered. A full disk is a SystemError, in most cases
// already from the constructor, which reserves the space.
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/safetensors.h"

namespace octet {

struct StoredTensor {
  std::string name;
  DType dtype = DType::f32;  // as stored
  std::vector<int64_t> shape;
};

// whole:  writes PATH.tmp; close() checks that every byte was written, and renames it to PATH, or to what a link of
//         that name leads to. The usual choice.
// create: writes PATH itself, which the caller has staged in a folder of its own. One process does this …
// join:   … and, when its constructor is done, others join it with the same tensors and metadata.
enum class WriterRole { whole, create, join };

class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path path, const std::vector<StoredTensor>& tensors,
                    const std::map<std::string, std::string>& metadata = {}, WriterRole role = WriterRole::whole);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();  // without close(), a `whole` file's temporary is removed

  // Elements [first, first + count) of a tensor, converted to its stored type, rounded to
  // nearest. From several threads.
  void write(const std::string& name, int64_t first, std::span<const float> src);
  void write(const std::string& name, int64_t first, std::span<const double> src);
  void write(const std::string& name, int64_t first, std::span<const int32_t> src);
  // The same of elements that are of the stored type already.
  void write_bytes(const std::string& name, int64_t first, std::span<const std::byte> src);
  void close();  // makes what this writer wrote durable

 private:
  struct Target {
    DType dtype;
    int64_t numel, offset;  // offset: from the start of the file
  };
  std::string header(const std::vector<StoredTensor>& tensors, const std::map<std::string, std::string>& metadata);
  void open(const std::string& header);
  const Target& target(const std::string& name, int64_t first, int64_t count) const;
  template <class From>
  void convert(const std::string& name, int64_t first, std::span<const From> src);
  void put(const void* data, size_t bytes, int64_t offset);

  std::filesystem::path path_, working_;  // working_: the file while it is written
  WriterRole role_;
  std::map<std::string, Target> targets_;
  int64_t end_ = 0, data_bytes_ = 0;
  std::atomic<int64_t> written_ = 0;  // bytes of data
  int fd_ = -1;
};

}  // namespace octet
