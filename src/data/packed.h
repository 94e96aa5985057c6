#pragma once
// Files that are compressed, whatever their names say.
#include <algorithm>
#include <array>
#include <string_view>

namespace octet {

inline bool is_packed(std::string_view bytes) {  // by the first ones: gzip, zstd, xz, zip, lz4
  constexpr std::array<std::string_view, 5> kMagic{"\x1f\x8b\x08", "\x28\xb5\x2f\xfd", "\xfd\x37zXZ", "PK\x03\x04",
                                                   "\x04\x22\x4d\x18"};
  return std::ranges::any_of(kMagic, [&](std::string_view magic) { return bytes.starts_with(magic); });
}

}  // namespace octet
