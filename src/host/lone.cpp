// One rank that stands for all: whatever the others would say, it says itself.
#include <cstring>

#include "base/check.h"
#include "host/host.h"

namespace octet {

void LoneHost::all_gather(void* all, const void* mine, size_t bytes) {
  for (size_t r = 0; r < size_t(size_); ++r)
    if (char* to = static_cast<char*>(all) + r * bytes; bytes && to != mine) std::memcpy(to, mine, bytes);
}
void take_part(const std::vector<Host::Part>& sends, size_t& next, int to, const Host::Part& wanted) {
  while (next < sends.size() && sends[next].rank != to) ++next;
  CHECK(next < sends.size() && sends[next].bytes == wanted.bytes, "rank ", to, " waits for ", wanted.bytes,
        " bytes from rank ", wanted.rank, ", which sends ", next < sends.size() ? sends[next].bytes : 0);
  if (wanted.bytes) std::memcpy(wanted.data, sends[next].data, wanted.bytes);
  ++next;
}
void LoneHost::exchange(const std::vector<Part>& receives, const std::vector<Part>& sends) {
  std::vector<size_t> next(size_t(size_), 0);  // what rank r says to this one is what this one says to r
  for (const Part& wanted : receives) take_part(sends, next[size_t(wanted.rank)], wanted.rank, wanted);
}
void LoneHost::all_to_all(void* all, const void* mine, size_t bytes) { all_gather(all, mine, bytes); }

}  // namespace octet
