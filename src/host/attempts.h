#pragma once
// Attempts: work on files that all ranks do together, and that may fail on each of them: a full disk, a folder that one
// node does not see. A failure becomes every rank's at the next agree(): none is left waiting for one that went away.
#include <string>

#include "base/check.h"
#include "host/host.h"

namespace octet {

// Thrown on all ranks at once, with the same message and exit code: those of the first rank that failed.
struct AttemptFailed : Error {
  using Error::Error;
};

class Attempts {
 public:
  explicit Attempts(Host& host) : host_(host) {}
  // Calls f, which says nothing to other ranks, unless an attempt has failed here before. What bad_input(),
  // SystemError and the file system throw is kept for agree(); faults of the program pass through.
  template <class F>
  void operator()(F&& f) {
    if (code_ != 0) return;
    try {
      f();
    } catch (const std::exception& e) { keep(e); }
  }
  void agree();  // on all ranks; also a barrier. AttemptFailed if an attempt of any failed

 private:
  void keep(const std::exception&);  // from a handler of exceptions
  Host& host_;
  int code_ = 0;  // exit code; 0: all is well
  std::string message_;
};

}  // namespace octet
