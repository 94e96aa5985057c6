#pragma once
// Which build of the program this is: what the linker wrote into it (--build-id), a hash of its contents.
#include <string>

namespace octet {

std::string build_id();  // hexadecimal; "" if it bears none

}  // namespace octet
