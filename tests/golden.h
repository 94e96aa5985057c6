#pragma once
// Where the golden files are: tests/golden, or another folder of the same form named by the
// environment variable OCTET_GOLDEN.
#include <cstdlib>
#include <string>

inline std::string golden(const std::string& relative) {
  const char* other = std::getenv("OCTET_GOLDEN");
  return std::string(other && *other ? other : GOLDEN) + "/" + relative;
}
