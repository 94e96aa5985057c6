#include "data/document_bounds.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/rng.h"

namespace octet {

void set_bounds(const DocumentBounds& sequence, std::span<const int64_t> starts) {
  const int64_t T = int64_t(sequence.begins.size());
  const auto fill = [&](int64_t begin, int64_t end) {
    CHECK(0 <= begin && begin < end && end <= T, "a document from ", begin, " to ", end, " of ", T, " tokens");
    std::fill(sequence.begins.begin() + begin, sequence.begins.begin() + end, int32_t(begin));
    std::fill(sequence.ends.begin() + begin, sequence.ends.begin() + end, int32_t(end));
  };
  int64_t begin = 0;
  for (const int64_t start : starts) fill(begin, start), begin = start;
  fill(begin, T);
}

void set_bounds(const DocumentBounds& sequence, const TokenFile& file, int64_t first, int64_t count) {
  // A document that starts at the first token begins there without being told; one that runs into the sequence does so.
  const TokenFile::Starts found = file.starts_in(first + 1, first + count);
  std::vector<int64_t> starts;
  for (int64_t document = found.document; const int64_t at : found.at) {
    if (at <= first + (starts.empty() ? 0 : starts.back()))  // nothing else reads the whole index
      bad_input("token file '", file.path().string(), "' has a damaged index at document ", document,
                ": make it again with 'octet tokenize'");
    starts.push_back(at - first);
    ++document;
  }
  if (count < int64_t(sequence.begins.size())) starts.push_back(count);
  set_bounds(sequence, starts);
}

void set_random_bounds(const DocumentBounds& sequence, uint64_t seed, int64_t sample) {
  constexpr double kMedian = 512;  // tokens; log-normal with a spread of e, so 844 on average
  const int64_t T = int64_t(sequence.begins.size());
  std::vector<int64_t> starts;
  const uint64_t draws = random_bits(seed, hash("lengths of documents"), uint64_t(sample));
  for (int64_t at = 0, i = 0; at < T; ++i) {
    if (at > 0) starts.push_back(at);
    at += 1 + std::llround(kMedian * std::exp(normal(draws, 0, uint64_t(i))));
  }
  set_bounds(sequence, starts);
}

}  // namespace octet
