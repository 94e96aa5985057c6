#pragma once
// Ranks as threads, for tests: an ASSERT that fails on one rank ends the others too, which would wait for it.
#include <gtest/gtest.h>

#include "base/check.h"
#include "host/host.h"

namespace octet {

inline void run_ranks(int size, const std::function<void(Host&)>& body) {
  run_threads(size, [&](Host& host) {
    body(host);
    if (testing::Test::HasFatalFailure()) throw Error("an assertion failed on a rank");
  });
}

}  // namespace octet
