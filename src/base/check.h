#pragma once
// Errors for people. Three kinds, each with the exit code that main() returns:
//   InputError (2)   what the user gave is wrong: the message says what, where (file, key, line) and what to do
//   SystemError (3)  the machine failed: a full disk, no memory, a lost rank
//   Error (3)        CHECK failed: a bug in this program; the message carries file and line of the source
#include <sstream>
#include <stdexcept>
#include <string>

namespace octet {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, int exit_code = 3) : std::runtime_error(what), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};
struct InputError : Error {
  explicit InputError(const std::string& what) : Error(what, 2) {}
};
struct SystemError : Error {
  explicit SystemError(const std::string& what) : Error(what, 3) {}
};

// The parts as streams write them, one after the other. An object, because argument-dependent lookup would prefer a
// function of this name in the namespace of a part: nlohmann::json has one from 3.11.3 on, which takes all for strings.
inline constexpr auto concat = []<class... Parts>(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
};

template <class... Parts>
[[noreturn, gnu::cold]] void fail(const char* file, int line, const Parts&... parts) {
  throw Error(concat(file, ":", line, ": ", parts...));
}
template <class... Parts>
[[noreturn, gnu::cold]] void bad_input(const Parts&... parts) {
  throw InputError(concat(parts...));
}

}  // namespace octet

// CHECK(condition, message parts...): an invariant of the program. bad_input(...) is for what the user can fix.
#define CHECK(cond, ...)                                                                             \
  do {                                                                                               \
    if (!(cond)) [[unlikely]]                                                                        \
      ::octet::fail(__FILE__, __LINE__, "CHECK(" #cond ") failed" __VA_OPT__(, ": ", ) __VA_ARGS__); \
  } while (0)
