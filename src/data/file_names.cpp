#include "data/file_names.h"

#include <glob.h>

#include <filesystem>

#include "base/check.h"
#include "base/refused.h"

namespace octet {

std::vector<std::string> expand_globs(const std::vector<std::string>& patterns) {
  std::vector<std::string> names;
  for (const std::string& pattern : patterns) {
    std::error_code ignored;
    if (std::filesystem::is_directory(pattern, ignored))
      bad_input("'", pattern, "' is a folder: name its files, for example '",
                (std::filesystem::path(pattern) / "*").string(), "'");
    std::error_code why;
    if (std::filesystem::exists(pattern, why) || (why && !is_wrong_name(why.value()))) {  // who opens it says why not
      names.push_back(pattern);
      continue;
    }
    glob_t found = {};
    const int error = ::glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &found);  // sorted
    for (size_t i = 0; i < found.gl_pathc; ++i) names.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
    if (error == GLOB_NOSPACE) throw SystemError("out of memory while looking for '" + pattern + "'");
    if (error != 0 && (pattern.starts_with('/') || pattern.starts_with('~')))
      bad_input("no file matches '", pattern, "': check the name, and that you may read its folder");
    if (error != 0)
      bad_input("no file matches '", pattern, "': check the name (it is relative to ",
                std::filesystem::current_path().string(), ")");
  }
  return names;
}

}  // namespace octet
