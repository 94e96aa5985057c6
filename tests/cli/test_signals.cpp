// What ends a run from outside: it saves first, where it is asked and not killed.
#include <sys/stat.h>

#include <chrono>
#include <thread>

#include "cli/tiny_run.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

const std::vector<std::string> kEndless{"training.steps=10000000", "checkpoint.every=0"};

class Signals : public testing::Test {
 protected:
  // Under way, or over.
  Process started(const std::vector<std::string>& words) const {
    Process process(words, tiny_.folder());
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    std::error_code none;
    const auto logs = [&] { return fs::file_size(tiny_.path("metrics.jsonl"), none) > 0 && !none; };
    while (process.runs() && std::chrono::steady_clock::now() < limit && !logs())
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(process.runs()) << process.wait();
    return process;
  }
  // `shell` with the run's command in the place of RUN.
  std::vector<std::string> in_shell(std::string shell, const std::vector<std::string>& more) const {
    std::string command;
    for (const std::string& word : tiny_.words(more)) command += "'" + word + "' ";
    return {"bash", "-c", shell.replace(shell.find("RUN"), 3, command)};
  }
  void expect_saved(const Ran& r) const {
    EXPECT_EQ(r.code, 4) << r;
    expect_done(tiny_.train({"training.steps=10000000", "training.stop_after=1"}), {"resumed from"});
  }
  const TinyRun tiny_;
};

TEST_F(Signals, EachSavesAndEndsWithFour) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    Process process = started(tiny_.words(kEndless));
    process.signal(signal);
    const Ran r = process.wait();
    EXPECT_TRUE(has(r.out, "ended by a signal")) << r;
    expect_saved(r);
    fs::remove_all(tiny_.path("run"));
    fs::remove(tiny_.path("metrics.jsonl"));
  }
}

// As it gets ready, as it trains, and as it ends.
TEST_F(Signals, AWishToSaveNeverEndsARun) {
  Process process(tiny_.words({"checkpoint.every=0"}), tiny_.folder());
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (process.runs() && std::chrono::steady_clock::now() < limit && !fs::exists(tiny_.path("run/.lock")))
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  while (process.runs()) process.signal(SIGUSR2);
  expect_done(process.wait(), {"step 10/10"});
}

TEST_F(Signals, AWishToSaveNowhereIsAnswered) {
  Process process = started(tiny_.words({"training.steps=10000000", "checkpoint.dir="}));
  process.signal(SIGUSR2);
  const auto answered = [&] { return has(read_file(tiny_.path("ran.err")), "SIGUSR2: nothing is saved"); };
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (process.runs() && std::chrono::steady_clock::now() < limit && !answered())
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(answered());
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait().code, 4);
}

// A shell and the kernel each send one when a terminal closes; and who read the log ends with it.
TEST_F(Signals, AClosedTerminalSavesHoweverOftenItIsTold) {
  const std::string pipe = tiny_.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  Process process = started(in_shell("exec RUN > '" + pipe + "' 2>&1", kEndless));
  process.signal(SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ::close(reader);
  while (process.runs()) process.signal(SIGHUP);
  const Ran r = process.wait();
  EXPECT_EQ(r.code, 4) << r;
  expect_done(tiny_.train({"training.steps=10000000", "training.stop_after=1"}), {"resumed from"});
}

TEST_F(Signals, AReaderThatLeavesEndsNoRun) {
  for (const char* what : {"RUN | head -1", "RUN 2>&1 | head -1"}) {
    expect_done(run(in_shell(concat("set -o pipefail; ", what), {})), {"CPU"});
    EXPECT_EQ(tiny_.losses().size(), 10u);
    EXPECT_TRUE(fs::exists(tiny_.path("run/step-00000010/COMPLETE")));
    fs::remove_all(tiny_.path("run"));
    fs::remove(tiny_.path("metrics.jsonl"));
  }
  const Ran help = run({"bash", "-c", concat("'", OCTET_BINARY, "' help config | head -1")});
  expect_done(help);
  EXPECT_EQ(help.err, "");
}

TEST_F(Signals, UnderNohupAClosedTerminalChangesNothing) {
  Process process = started(in_shell("trap '' HUP; exec RUN", {"training.steps=200", "checkpoint.every=0"}));
  for (int i = 0; i < 20; ++i) process.signal(SIGHUP);
  expect_done(process.wait(), {"step 200/200"});
}

// Before main, where nobody sees any more how it was, and back again as the program ends.
TEST_F(Signals, ALibraryThatTakesHangupChangesNothing) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers want to be the first library";
#endif
  const std::string taken = "exec env LD_PRELOAD='" TAKES_HANGUP "' RUN";
  Process process = started(in_shell("trap '' HUP; " + taken, {"training.steps=200", "checkpoint.every=0"}));
  for (int i = 0; i < 20; ++i) process.signal(SIGHUP);
  expect_done(process.wait(), {"step 200/200"});
  fs::remove_all(tiny_.path("run"));
  fs::remove(tiny_.path("metrics.jsonl"));
  Process told = started(in_shell(taken, kEndless));
  while (told.runs()) told.signal(SIGHUP);
  expect_saved(told.wait());
}

}  // namespace
}  // namespace octet
