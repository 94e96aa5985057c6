// Within any limit of addresses (ulimit -v) a run trains, or ends at once and says why; OpenBLAS alone would wait for
// ever for room that does not come.
#include "cli/tiny_run.h"

namespace octet {
namespace {

Ran within(int64_t mebibytes, const std::vector<std::string>& words) {
  std::string line = concat("ulimit -v ", mebibytes * 1024, "; OMP_NUM_THREADS=2 exec timeout -s KILL 60");
  for (const std::string& word : words) line += " '" + word + "'";
  return run({"sh", "-c", line});
}

TEST(Limits, ARunWithinAddressesTrainsOrSaysWhy) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer reserves more addresses than there are";
#endif
  const TinyRun tiny;
  int trained = 0, refused = 0;
  for (const int64_t mebibytes : {120, 160, 200, 300, 400, 500, 700, 1000, 2000}) {
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
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer reserves more addresses than there are";
#endif
  const Ran r = within(120, {OCTET_BINARY, "--version"});
  expect_done(r, {"octet "});
}

}  // namespace
}  // namespace octet
