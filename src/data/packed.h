#pragma once
// Files that are compressed, whatever their names say.
#include <algorithm>
#include <array>
#include <string_view>

namespace octet {

inline bool is_packed(std::string_view bytes) {  // by the first ones: gzip, zstd, xz, zip, lz4; bzip2; Parquet
  constexpr std::array<std::string_view, 6> kMagic{"\x1f\x8b\x08", "\x28\xb5\x2f\xfd", "\xfd\x37zXZ",
                                                   "PK\x03\x04",   "\x04\x22\x4d\x18", "PAR1"};
  return std::ranges::any_of(kMagic, [&](std::string_view magic) { return bytes.starts_with(magic); }) ||
         (bytes.starts_with("BZh") && bytes.size() > 4 && bytes.substr(4).starts_with("1AY&SY"));
}

}  // namespace octet
