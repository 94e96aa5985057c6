// Arrays that NumPy saved: "\x93NUMPY", u8 major and u8 minor version, the length of a Python dict (u16; u32 from
// version 2 on), that dict as text, for example {'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }, then the
// numbers. numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "data/foreign_tokens.h"

namespace octet {
namespace {

// What stands behind 'key': in the dict, between `open` and `close`; empty where there is no such thing.
std::string value_of(const std::string& dict, const std::string& key, char open, char close) {
  size_t at = dict.find("'" + key + "':");
  if (at == std::string::npos) return "";
  at = dict.find_first_not_of(' ', at + key.size() + 3);
  if (at == std::string::npos || dict[at] != open) return "";
  const size_t end = dict.find(close, at + 1);
  const std::string value = end == std::string::npos ? "" : dict.substr(at + 1, end - at - 1);
  return std::ranges::all_of(value, [](char c) { return c >= ' ' && c <= '~'; }) ? value : "";
}

// The product of "1000," or "3, 4"; nothing if it is above `most`, or no shape.
std::optional<int64_t> elements(const std::string& shape, int64_t most) {
  int64_t count = 1;
  for (const char *at = shape.data(), *end = at + shape.size(); at < end;) {
    if (*at == ',' || *at == ' ') {
      ++at;
      continue;
    }
    int64_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    if (error != std::errc() || size < 0 || (size > 0 && count > most / size)) return {};
    count *= size;
    at = next;
  }
  return count;
}

}  // namespace

ForeignTokens open_npy(LongRead file, const std::string& head) {
  const std::string name = file.path().string();
  if (!head.starts_with("\x93NUMPY")) refuse_as("npy", file, head);
  const size_t length_bytes = head.size() > 6 && head[6] >= 2 ? 4 : 2, dict_at = 8 + length_bytes;
  uint32_t length = 0;
  if (head.size() >= dict_at) std::memcpy(&length, head.data() + 8, length_bytes);
  if (head.size() < dict_at + length)
    bad_input("'", name, "' is no array of ids, or ends within its header: save it again with numpy.save");
  const std::string dict = head.substr(dict_at, length);
  const std::string type = value_of(dict, "descr", '\'', '\''), shape = value_of(dict, "shape", '(', ')');
  const std::array<const char*, 8> known = {"|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8"};  // as IdType
  const auto found = std::find(known.begin(), known.end(), type);
  if (found == known.end())
    bad_input("'", name, "' holds ", type.empty() ? "records" : "numbers of type " + type,
              ", no ids: save them as integers, for example numpy.save(NAME, ids.astype('<u4'))");
  if (dict.find("'fortran_order': True") != std::string::npos)
    bad_input("'", name, "' is stored column by column: save numpy.ascontiguousarray of it");
  ForeignTokens opened{std::move(file), int64_t(dict_at + length), 0, IdType(found - known.begin()), 0};
  const int64_t held = opened.file.size() - opened.offset, width = bytes_of(opened.type);
  const std::optional<int64_t> promised = elements(shape, held);
  if (!promised || *promised * width != held)
    bad_input("'", name, "' promises an array of shape (", shape, ") of ", width, " bytes each, ", held,
              " bytes follow its header: it is cut short or damaged; save it again");
  opened.count = *promised;
  return opened;
}

}  // namespace octet
