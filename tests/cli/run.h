#pragma once
// Runs a program as a user's shell does, and keeps its exit code and what it said.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "data/scratch.h"

namespace octet {

struct Ran {
  int code = -1;  // 128 + the signal that killed it
  std::string out, err;
};
inline std::ostream& operator<<(std::ostream& stream, const Ran& r) {
  return stream << "exit code " << r.code << "\n--- out\n" << r.out << "--- err\n" << r.err;
}

class Process {
 public:
  Process(std::vector<std::string> words, const Scratch& folder, const std::string& name = "ran")
      : out_(folder / (name + ".out")), err_(folder / (name + ".err")) {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    const int out = ::open(out_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    const int err = ::open(err_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
    ::setenv("OMP_WAIT_POLICY", "passive", 0);  // other tests run beside this one: waiting threads must not hold a core
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  bool runs() { return !done_ && !(done_ = ::waitpid(pid_, &status_, WNOHANG) != 0); }
  pid_t pid() const { return pid_; }
  void signal(int number) { ::kill(pid_, number); }
  Ran wait() {
    if (!done_) ::waitpid(pid_, &status_, 0);
    done_ = true;
    return {WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_), read_file(out_), read_file(err_)};
  }

 private:
  std::filesystem::path out_, err_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool done_ = false;
};

inline Ran run(std::vector<std::string> words) {
  const Scratch folder;
  return Process(std::move(words), folder).wait();
}
inline Ran octet_says(std::vector<std::string> words) {
  words.insert(words.begin(), OCTET_BINARY);
  return run(std::move(words));
}

// The user's input is wrong: exit code 2, and a message that holds every part; not a word of a fault of the program.
inline void expect_refused(const Ran& r, const std::vector<std::string>& parts) {
  EXPECT_EQ(r.code, 2) << r;
  EXPECT_TRUE(r.err.starts_with("octet: ")) << r;
  EXPECT_FALSE(has(r.err, "CHECK(")) << r;
  for (const std::string& part : parts) EXPECT_TRUE(has(r.err, part)) << "'" << part << "' is not in\n" << r;
}
inline void expect_done(const Ran& r, const std::vector<std::string>& parts = {}) {
  EXPECT_EQ(r.code, 0) << r;
  for (const std::string& part : parts) EXPECT_TRUE(has(r.out, part)) << "'" << part << "' is not in\n" << r;
}

}  // namespace octet
