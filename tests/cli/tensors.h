#pragma once
// Tensors of files, byte for byte, and small models that tests make of them.
#include <map>

#include "cli/run.h"
#include "data/safetensors_writer.h"

namespace octet {

struct StoredBytes {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
  bool operator==(const StoredBytes&) const = default;
};
inline std::map<std::string, StoredBytes> tensors_in(const std::filesystem::path& model) {
  const SafetensorsModel files(model);
  std::map<std::string, StoredBytes> all;
  files.for_each([&](const SafetensorsModel::Place& p) {
    all[p.entry->name] = {
        p.entry->dtype, p.entry->shape, {reinterpret_cast<const char*>(p.file->data(*p.entry)), p.entry->bytes}};
  });
  return all;
}
inline void expect_same_tensors(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto in_a = tensors_in(a), in_b = tensors_in(b);
  ASSERT_FALSE(in_a.empty());
  EXPECT_EQ(in_a.size(), in_b.size());
  for (const auto& [name, tensor] : in_a) {
    ASSERT_TRUE(in_b.contains(name)) << name;
    EXPECT_EQ(tensor.dtype, in_b.at(name).dtype) << name;
    EXPECT_EQ(tensor.shape, in_b.at(name).shape) << name;
    EXPECT_TRUE(tensor.bytes == in_b.at(name).bytes) << name;
  }
}

struct FloatTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};
inline void write_tensors(const std::filesystem::path& path, const std::vector<FloatTensor>& tensors,
                          DType dtype = DType::f32) {
  std::vector<StoredTensor> stored;
  for (const FloatTensor& t : tensors) stored.push_back({t.name, dtype, t.shape});
  SafetensorsWriter writer(path, stored);
  for (const FloatTensor& t : tensors) writer.write(t.name, 0, std::span<const float>(t.values));
  writer.close();
}

// A copy of a model with one tensor's type changed in the header, to another name of the same length.
inline void change_dtype(const std::filesystem::path& file, const std::string& from, const std::string& to) {
  std::string bytes = read_file(file);
  const size_t at = bytes.find("\"" + from + "\"");
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(from.size(), to.size());
  bytes.replace(at + 1, to.size(), to);
  write_file(file, bytes);
}

inline void copy_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

}  // namespace octet
