#include "data/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

namespace octet {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Entry = SafetensorsFile::Entry;
static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr size_t kMaxHeader = 100'000'000;  // what the format allows
constexpr std::array<std::pair<std::string_view, int64_t>, 16> kStored{{{"F64", 8},
                                                                        {"F32", 4},
                                                                        {"F16", 2},
                                                                        {"BF16", 2},
                                                                        {"F8_E4M3", 1},
                                                                        {"F8_E5M2", 1},
                                                                        {"F8_E8M0", 1},
                                                                        {"I64", 8},
                                                                        {"I32", 4},
                                                                        {"I16", 2},
                                                                        {"I8", 1},
                                                                        {"U64", 8},
                                                                        {"U32", 4},
                                                                        {"U16", 2},
                                                                        {"U8", 1},
                                                                        {"BOOL", 1}}};

template <class... Parts>
[[noreturn]] void damaged(const fs::path& path, const Parts&... parts) {
  bad_input("'", path.string(), "': ", parts...,
            ". The file is damaged, incomplete or not a safetensors file: copy, download or export it again");
}

// JSON in which no object names a key twice: nlohmann would keep the last one and say nothing.
json parse_unique(std::string_view text, const fs::path& path) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::string twice;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.resize(size_t(depth) + 1);
    if (event == json::parse_event_t::object_start) keys.back().clear();
    if (event == json::parse_event_t::key && twice.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys[size_t(depth) - 1].insert(key).second) twice = key;
    }
    return true;
  };
  json parsed;
  try {
    parsed = json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& e) {  // of syntax, or a number beyond a double
    damaged(path, "its JSON cannot be read (", std::string(e.what()).substr(0, 200), ")");  // it quotes the text
  }
  if (!twice.empty()) damaged(path, "'", twice, "' stands twice in its JSON");
  if (!parsed.is_object()) damaged(path, "its JSON is not an object");
  return parsed;
}

// An array of non-negative integers below 2^63.
std::optional<std::vector<int64_t>> integers(const json& j) {
  if (!j.is_array()) return std::nullopt;
  std::vector<int64_t> values;
  for (const json& v : j) {
    if (!v.is_number_unsigned() || !std::in_range<int64_t>(v.get<uint64_t>())) return std::nullopt;
    values.push_back(v.get<int64_t>());
  }
  return values;
}

// One entry of the header; offsets become positions in the file.
Entry read_entry(const std::string& name, const json& j, size_t data_start, const MappedFile& file) {
  const auto wrong = [&](const auto&... parts) { damaged(file.path(), "tensor '", name, "': ", parts...); };
  if (!j.is_object() || !j.contains("dtype") || !j.contains("shape") || !j.contains("data_offsets"))
    wrong("its header entry lacks dtype, shape or data_offsets");
  if (!j["dtype"].is_string()) wrong("its dtype is not a string");
  Entry e{.name = name, .dtype = j["dtype"]};
  const int64_t element = stored_size(e.dtype);
  if (element == 0)
    bad_input("'", file.path().string(), "': tensor '", name, "' has the type '", e.dtype,
              "', which octet does not read: convert it to F32, F16 or BF16");
  const auto shape = integers(j["shape"]), offsets = integers(j["data_offsets"]);
  if (!shape) wrong("its shape is not a list of sizes");
  if (!offsets || offsets->size() != 2) wrong("its data_offsets are not two positions");
  e.shape = *shape;
  int64_t bytes = element;
  for (int64_t d : e.shape)
    if (__builtin_mul_overflow(bytes, d, &bytes)) wrong("its shape ", to_string(e.shape), " overflows 64 bits");
  const int64_t begin = (*offsets)[0], end = (*offsets)[1], size = file.size() - int64_t(data_start);
  if (begin > end) wrong("its data ends (", end, ") before it begins (", begin, ")");
  if (end > size)
    wrong("its data ends at byte ", end, " of the data, but the file holds only ", size, " bytes of data");
  if (end - begin != bytes)
    wrong("its shape ", to_string(e.shape), " of ", e.dtype, " takes ", bytes, " bytes, but its data_offsets hold ",
          end - begin);
  e.offset = data_start + size_t(begin);
  e.bytes = size_t(bytes);
  return e;
}

std::optional<DType> float_type(std::string_view stored) {
  for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2})
    if (stored == stored_name(t)) return t;
  return std::nullopt;
}

}  // namespace

int64_t stored_size(std::string_view dtype) {
  for (const auto& [name, bytes] : kStored)
    if (name == dtype) return bytes;
  return 0;
}

const char* stored_name(DType t) {
  return std::array{"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I32", "U32"}[size_t(t)];
}

std::string to_string(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(path) {
  read_header();
  check_layout();
  for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
}

void SafetensorsFile::read_header() {
  const std::string_view bytes = file_.bytes();
  uint64_t n = 0;
  if (bytes.size() < sizeof n) damaged(path(), "it has only ", bytes.size(), " bytes");
  std::memcpy(&n, bytes.data(), sizeof n);
  if (bytes.starts_with("version https://git-lfs"))
    bad_input("'", path().string(), "' is a pointer of Git LFS, not the weights: run git lfs pull in its folder");
  if (n > kMaxHeader) damaged(path(), "its header would have ", n, " bytes, more than the format allows");
  if (n > bytes.size() - sizeof n)
    damaged(path(), "its header would have ", n, " bytes, but only ", bytes.size() - sizeof n, " follow");
  const std::string_view text = bytes.substr(sizeof n, n);
  if (text.empty() || text[0] != '{') damaged(path(), "its header does not begin with '{'");
  const json parsed = parse_unique(text, path());
  for (const auto& [name, value] : parsed.items()) {
    if (name != "__metadata__") {
      entries_.push_back(read_entry(name, value, sizeof n + n, file_));
      continue;
    }
    if (!value.is_object()) damaged(path(), "its __metadata__ is not an object");
    for (const auto& [key, item] : value.items()) {
      if (!item.is_string()) damaged(path(), "'", key, "' in its __metadata__ is not a string");
      metadata_[key] = item.get<std::string>();
    }
  }
  std::ranges::sort(entries_, {}, [](const Entry& e) { return std::tie(e.offset, e.bytes, e.name); });
  if (entries_.empty() && bytes.size() > sizeof n + n)
    damaged(path(), "it names no tensor, but holds ", bytes.size() - sizeof n - n, " bytes of data");
}

// The tensors lie back to back, from the end of the header to the end of the file.
void SafetensorsFile::check_layout() const {
  if (entries_.empty()) return;
  uint64_t n = 0;
  std::memcpy(&n, file_.bytes().data(), sizeof n);
  size_t end = sizeof n + n;
  const Entry* before = nullptr;
  for (const Entry& e : entries_) {
    if (e.offset < end) damaged(path(), "the data of '", before->name, "' and '", e.name, "' overlap");
    if (e.offset > end) damaged(path(), "the ", e.offset - end, " bytes before '", e.name, "' belong to no tensor");
    end = e.offset + e.bytes;
    before = &e;
  }
  if (end < size_t(file_.size()))
    damaged(path(), "the ", size_t(file_.size()) - end, " bytes after '", before->name, "' belong to no tensor");
}

const Entry* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &entries_[it->second];
}

const Entry& SafetensorsFile::at(std::string_view name) const {
  const Entry* e = find(name);
  if (!e) bad_input("'", path().string(), "' has no tensor '", name, "': name a file that holds it");
  return *e;
}

const std::byte* SafetensorsFile::data(const Entry& e) const {
  return reinterpret_cast<const std::byte*>(file_.bytes().data()) + e.offset;
}

template <class To>
void SafetensorsFile::convert(const Entry& e, int64_t first, int64_t count, To* dst) const {
  CHECK(first >= 0 && count >= 0 && count <= e.numel() && first <= e.numel() - count, e.name, ": elements ", first,
        " to ", first + count, " of ", e.numel());
  const std::byte* src = data(e) + size_t(first) * size_t(stored_size(e.dtype));
  const auto copy = [&]<class From>() {
    for (int64_t i = 0; i < count; ++i) {
      From value;  // the source need not be aligned
      std::memcpy(&value, src + size_t(i) * sizeof value, sizeof value);
      if constexpr (std::is_integral_v<To>) {
        if (!std::in_range<To>(value))
          bad_input("'", path().string(), "': tensor '", e.name, "' holds ", +value, " at element ", first + i,
                    ", which is not a 32-bit integer");
      }
      dst[i] = To(value);
    }
  };
  const auto wrong_type = [&](const char* wanted) {
    bad_input("'", path().string(), "': tensor '", e.name, "' holds ", e.dtype, ", but ", wanted,
              " are wanted there: convert it, or name another file");
  };
  if constexpr (std::is_integral_v<To>) {
    const auto integer = [&]<class From>(std::string_view stored) {
      if (stored == e.dtype) copy.template operator()<From>();
      return stored == e.dtype;
    };
    if (!(integer.template operator()<int64_t>("I64") || integer.template operator()<int32_t>("I32") ||
          integer.template operator()<int16_t>("I16") || integer.template operator()<int8_t>("I8") ||
          integer.template operator()<uint64_t>("U64") || integer.template operator()<uint32_t>("U32") ||
          integer.template operator()<uint16_t>("U16") || integer.template operator()<uint8_t>("U8") ||
          integer.template operator()<uint8_t>("BOOL")))
      wrong_type("integers");
  } else {
    const auto type = float_type(e.dtype);
    if (!type) wrong_type("floating-point numbers");
    visit<double, float, f16, bf16, e4m3, e5m2>(*type, copy);
  }
}

void SafetensorsFile::read(const Entry& e, int64_t first, int64_t count, float* dst) const {
  convert(e, first, count, dst);
}
void SafetensorsFile::read(const Entry& e, int64_t first, int64_t count, double* dst) const {
  convert(e, first, count, dst);
}
void SafetensorsFile::read(const Entry& e, int64_t first, int64_t count, int32_t* dst) const {
  convert(e, first, count, dst);
}

// What a folder holds in the place of the files that are read, and what to do.
static std::string weights_instead(const fs::path& folder) {
  const auto find = [&](const char* begin, std::initializer_list<const char*> ends) {
    std::string found;  // the first by name
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none)) {
      const std::string name = entry.path().filename().string();
      const bool fits =
          name.starts_with(begin) && std::ranges::any_of(ends, [&](auto end) { return name.ends_with(end); });
      if (fits && (found.empty() || name < found)) found = name;
    }
    return found;
  };
  if (!find("pytorch_model", {".bin", ".bin.index.json"}).empty())
    return "it holds pickled weights; save the model with save_pretrained(..., safe_serialization=True)";
  if (const std::string name = find("model-", {".safetensors"}); !name.empty())
    return "it holds shards, '" + name + "', without that index; copy or download it too";
  if (const std::string name = find("", {".pth", ".gguf"}); !name.empty())
    return "'" + name + "' is of another program; take the model as transformers saves it";
  if (const std::string name = find("consolidated", {".safetensors"}); !name.empty())
    return "'" + name + "' is the publisher's own form; take the model as transformers saves it";
  if (const std::string name = find("", {".safetensors"}); !name.empty())
    return "if '" + name + "' is the whole model, rename it";
  return "name a folder in which transformers has saved a model";
}

SafetensorsModel::SafetensorsModel(const fs::path& folder_or_file) : path_(folder_or_file) {
  std::error_code ignored;
  if (!fs::exists(path_, ignored) && !ignored)
    bad_input("'", path_.string(), "' does not exist: name a folder with model.safetensors, or a safetensors file");
  const fs::path whole = path_ / "model.safetensors", index = path_ / "model.safetensors.index.json";
  const bool folder = fs::is_directory(path_, ignored);
  if (!folder && path_.string().ends_with(".index.json")) {
    read_index(path_);
  } else if (!folder) {
    add(path_);
  } else if (fs::exists(whole, ignored)) {
    add(whole);
  } else if (fs::exists(index, ignored)) {
    read_index(index);
  } else {
    bad_input("'", path_.string(),
              "' has neither model.safetensors nor model.safetensors.index.json: ", weights_instead(path_));
  }
}

void SafetensorsModel::add(const fs::path& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  const SafetensorsFile& file = *files_.back();
  for (const Entry& e : file.entries()) {
    const auto [it, added] = places_.try_emplace(e.name, Place{&file, &e});
    if (!added)
      bad_input("tensor '", e.name, "' is in two files, '", it->second.file->path().string(), "' and '", path.string(),
                "': they do not belong to one model; download or export it again");
  }
}

void SafetensorsModel::read_index(const fs::path& index) {
  const MappedFile text(index);
  const json parsed = parse_unique(text.bytes(), index);
  if (!parsed.contains("weight_map") || !parsed["weight_map"].is_object())
    bad_input("'", index.string(), "' has no object weight_map: download or export it again");
  std::set<std::string> shards;
  for (const auto& [name, shard] : parsed["weight_map"].items()) {
    if (!shard.is_string() || shard.get<std::string>().empty() || fs::path(shard.get<std::string>()).has_parent_path())
      bad_input("'", index.string(), "': the file of tensor '", name, "' is not a file name: export the model again");
    shards.insert(shard);
  }
  const fs::path folder = index.parent_path();
  std::string missing;
  for (const std::string& shard : shards)
    if (std::error_code ignored; !fs::exists(folder / shard, ignored) && !ignored)
      missing += (missing.empty() ? "'" : ", '") + shard + "'";
  if (!missing.empty())
    bad_input("'", index.string(), "' names files that are missing: ", missing,
              ": copy or download them into that folder");
  for (const std::string& shard : shards) add(folder / shard);
  for (const auto& [name, shard] : parsed["weight_map"].items()) {
    const Place place = find(name);
    if (!place || place.file->path().filename() != shard.get<std::string>())
      bad_input(
          "'", index.string(), "' says that tensor '", name, "' is in '", shard.get<std::string>(),
          "', but that file does not hold it: index and files are of different exports; download the model again");
  }
}

SafetensorsModel::Place SafetensorsModel::find(std::string_view name) const {
  const auto it = places_.find(name);
  return it == places_.end() ? Place{} : it->second;
}

SafetensorsModel::Place SafetensorsModel::at(std::string_view name) const {
  const Place place = find(name);
  if (!place) bad_input("'", path_.string(), "' has no tensor '", name, "': name a model that holds it");
  return place;
}

}  // namespace octet
