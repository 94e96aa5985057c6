// The trie is a double array of 32-bit units, as darts-clone lays it out. A unit has a label (bits 0-7, and 31, which
// is set in leaves), a flag that a leaf follows (bit 8), and an offset (bits 10-30, times 256 if bit 9 is set). From
// the state s, byte b leads to the unit at s ^ b if its label is b, and from there to the state s ^ b ^ offset; a leaf
// stands at the state itself and says where its text begins.
#include "data/charsmap.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace octet {
namespace {

// One field of protobuf's wire format.
struct Field {
  uint64_t number = 0, kind = 0;
  std::string_view bytes;  // of kind 2
};

std::optional<uint64_t> take_varint(std::string_view& from) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !from.empty(); shift += 7) {
    const auto byte = uint8_t(from.front());
    from.remove_prefix(1);
    value |= uint64_t(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  return {};
}

std::optional<Field> take_field(std::string_view& from) {
  const std::optional<uint64_t> key = take_varint(from);
  if (!key) return {};
  Field field{.number = *key >> 3, .kind = *key & 7};
  size_t size = 0;
  switch (field.kind) {
    case 0:
      return take_varint(from) ? std::optional(field) : std::nullopt;
    case 1:
      size = 8;
      break;
    case 2: {
      const std::optional<uint64_t> length = take_varint(from);
      if (!length || *length > from.size()) return {};
      size = size_t(*length);
      break;
    }
    case 5:
      size = 4;
      break;
    case 3:
    case 4:
      return field;
    default:
      return {};
  }
  if (size > from.size()) return {};
  field.bytes = from.substr(0, size);
  from.remove_prefix(size);
  return field;
}

// After the head of a group, an obsolete form that protobuf still skips.
bool skip_group(std::string_view& from) {
  for (int64_t depth = 1; depth > 0;) {
    const std::optional<Field> field = take_field(from);
    if (!field) return false;
    depth += field->kind == 3 ? 1 : field->kind == 4 ? -1 : 0;
  }
  return true;
}

uint32_t unit_at(std::string_view trie, size_t at) {
  uint32_t unit;
  std::memcpy(&unit, trie.data() + 4 * at, 4);
  return unit;
}
size_t offset_of(uint32_t unit) { return size_t(unit >> 10) << ((unit & 0x200) >> 6); }

}  // namespace

std::string fault_in_charsmap(std::string_view table) {
  if (table.empty()) return "";  // none
  uint32_t size = 0;
  constexpr size_t kBlock = 256;  // units: what a state's 256 bytes can lead to
  if (table.size() <= sizeof size) return "it is too short";
  std::memcpy(&size, table.data(), sizeof size);
  table.remove_prefix(sizeof size);
  if (size == 0 || size % (4 * kBlock) || size >= table.size()) return "its trie has an impossible size";
  const std::string_view trie = table.substr(0, size), texts = table.substr(size);
  if (texts.back() != '\0') return "its last text has no end";
  const size_t units = size / 4;
  std::vector<bool> seen(units, false);
  std::vector<size_t> open;
  const auto visit = [&](size_t state) {
    if (state >= units) return false;
    if (!seen[state]) open.push_back(state);
    seen[state] = true;
    return true;
  };
  if (!visit(offset_of(unit_at(trie, 0)))) return "its trie leads outside";
  while (!open.empty()) {
    const size_t state = open.back();
    open.pop_back();
    for (uint32_t byte = 0; byte < kBlock; ++byte) {
      const size_t at = state ^ byte;  // in the state's block, and blocks are whole
      const uint32_t unit = unit_at(trie, at);
      if ((unit & 0x800000ff) != byte) continue;
      const size_t next = at ^ offset_of(unit);
      const bool leaf = unit & 0x100;
      if (!visit(next)) return "its trie leads outside";
      if (leaf && (unit_at(trie, next) & 0x7fffffff) >= texts.size()) return "its trie names a text that is not there";
    }
  }
  return "";
}

std::string fault_in_charsmaps(std::string_view model) {
  constexpr uint64_t kNormalizer = 3, kDenormalizer = 5, kCharsmap = 2;
  while (!model.empty()) {
    const std::optional<Field> spec = take_field(model);
    if (!spec || spec->kind == 4 || (spec->kind == 3 && !skip_group(model))) return "";
    if (spec->kind != 2 || (spec->number != kNormalizer && spec->number != kDenormalizer)) continue;
    for (std::string_view inside = spec->bytes; !inside.empty();) {
      const std::optional<Field> field = take_field(inside);
      if (!field || field->kind == 4 || (field->kind == 3 && !skip_group(inside))) return "";
      if (field->kind != 2 || field->number != kCharsmap) continue;
      if (const std::string fault = fault_in_charsmap(field->bytes); !fault.empty()) return fault;
    }
  }
  return "";
}

}  // namespace octet
