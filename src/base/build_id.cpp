#include "base/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstring>

namespace octet {
namespace {

// The id among the notes of one segment: {size of name, size of what follows, type}, name, contents, each padded to 4.
std::string id_among(const char* at, const char* end) {
  while (end - at >= std::ptrdiff_t(sizeof(ElfW(Nhdr)))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, at, sizeof note);
    const auto padded = [](size_t n) { return (n + 3) / 4 * 4; };
    const size_t left = size_t(end - at) - sizeof note, name = padded(note.n_namesz), size = note.n_descsz;
    if (name > left || size > left - name) break;
    const char* contents = at + sizeof note + name;
    if (note.n_type == NT_GNU_BUILD_ID && std::strncmp(at + sizeof note, "GNU", 4) == 0) {
      std::string text;
      for (size_t i = 0; i < size; ++i)
        for (const int shift : {4, 0})
          text += "0123456789abcdef"[(static_cast<unsigned char>(contents[i]) >> shift) & 15];
      return text;
    }
    if (padded(size) > left - name) break;
    at = contents + padded(size);
  }
  return "";
}

int find(dl_phdr_info* info, size_t, void* found) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    const char* begin = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
    std::string& id = *static_cast<std::string*>(found);
    if (segment.p_type == PT_NOTE && id.empty()) id = id_among(begin, begin + segment.p_memsz);
  }
  return 1;  // the first one is the program itself
}

}  // namespace

std::string build_id() {
  std::string id;
  dl_iterate_phdr(find, &id);
  return id;
}

}  // namespace octet
