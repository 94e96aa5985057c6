// concat writes its parts as streams do, whatever they are.
#include <gtest/gtest.h>

#include <ostream>

#include "base/check.h"
#include "base/json.h"

namespace elsewhere {

struct Part {};
inline std::ostream& operator<<(std::ostream& out, const Part&) { return out << "part"; }
template <class... Parts>
std::string concat(Parts&&...) {
  return "a function of that name beside the type of a part";
}

}  // namespace elsewhere

namespace octet {

TEST(Concat, WritesItsPartsOneAfterTheOther) {
  EXPECT_EQ(concat("a", 1, ' ', 2.5, std::string("b")), "a1 2.5b");
}

TEST(Concat, IsNotReplacedByWhatAPartsNamespaceHolds) {
  elsewhere::Part part;
  EXPECT_EQ(concat("a ", part, 1), "a part1");
  json number = 2;
  EXPECT_EQ(concat(number, " bytes"), "2 bytes");
}

}  // namespace octet
