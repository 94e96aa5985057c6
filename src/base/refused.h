#pragma once
// The error for a system call on a file that failed.
#include <filesystem>

namespace octet {

// Throws "cannot VERB 'path': why: what to do"; error is an errno. An InputError where the user can fix it (no such
// folder, no permission), else a SystemError (a full disk, an I/O error).
[[noreturn]] void refused_path(const char* verb, const std::filesystem::path& path, int error);
// Whether a file that this errno keeps from being read has a wrong name or wrong permissions, which the user can fix;
// else it is the machine: an I/O error, too many open files, a stale handle of a network file system.
bool is_wrong_name(int error);

}  // namespace octet
