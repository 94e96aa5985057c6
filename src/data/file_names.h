#pragma once
// Names of files as a user gives them.
#include <string>
#include <vector>

namespace octet {

// The files that names and globs (*, ?, {a,b}, ~) stand for, in the order given, those of a glob sorted. InputError: a
// folder, or nothing matches.
std::vector<std::string> expand_globs(const std::vector<std::string>& patterns);

}  // namespace octet
