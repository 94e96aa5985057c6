// Within any limit of addresses (ulimit -v) a run trains, or ends at once and says why; OpenBLAS alone would wait for
// ever for room that does not come.
#include "cli/tiny_run.h"

namespace octet {
namespace {

Ran within(int64_t mebibytes, const std::vector<std::string>& words, int seconds = 60) {
  std::string line = concat("ulimit -v ", mebibytes * 1024, "; OMP_NUM_THREADS=2 exec timeout -s KILL ", seconds);
  for (const std::string& word : words) line += " '" + word + "'";
  return run({"sh", "-c", line});
}

// MiB that the program takes as it starts, in steps of 20: the libraries of a GPU build alone are larger than the rest.
// With fewer, the loader fails, or OpenBLAS (0.3.29 does) waits for room before main.
int64_t fewest() {
  static const int64_t found = [] {
    int64_t mebibytes = 120;
    while (within(mebibytes, {OCTET_BINARY, "--version"}, 3).code != 0 && mebibytes < 8000) mebibytes += 20;
    return mebibytes;
  }();
  return found;
}

TEST(Limits, ARunWithinAddressesTrainsOrSaysWhy) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve more addresses than there are";
#endif
  const TinyRun tiny;
  int trained = 0, refused = 0;
  const int64_t start = fewest();
  for (const int64_t more : {0, 40, 80, 180, 280, 380, 580, 880, 1880}) {
    const int64_t mebibytes = start + more;
    const Ran r = within(mebibytes, tiny.words({"--resume", "none", "checkpoint.every=1"}));
    if (r.code == 0) ++trained;
    else ++refused;
    if (r.code != 0) {
      EXPECT_TRUE(r.code == 2 || r.code == 3) << mebibytes << " MiB\n" << r;
      EXPECT_TRUE(has(r.err, "octet: ") && has(r.err, "ulimit -v")) << mebibytes << " MiB\n" << r;
    }
  }
  EXPECT_GE(trained, 2);
  EXPECT_GE(refused, 2);
}

TEST(Limits, WhatNeedsFewAddressesIsDone) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve more addresses than there are";
#endif
  expect_done(within(fewest(), {OCTET_BINARY, "help", "config"}), {"memory", "recompute_blocks"});
}

}  // namespace
}  // namespace octet
