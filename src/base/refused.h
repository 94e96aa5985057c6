#pragma once
// What to say, and whose fault it is, when the system refuses to do something to a file.
#include <filesystem>

namespace octet {

// error: errno. "cannot VERB 'path': why: what to do", an InputError where the user can put it right (no such folder,
// no permission), else a SystemError (a full disk, an I/O error).
[[noreturn]] void refused_path(const char* verb, const std::filesystem::path& path, int error);

}  // namespace octet
