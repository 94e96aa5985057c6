#include "host/last_words.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <regex>
#include <thread>

#include "base/check.h"
#include "base/rng.h"
#include "host/launch.h"

namespace octet {
namespace {

constexpr double kPatience = 2;    // seconds that a rank waits to hear that rank 0 fails alike: some read files slower
constexpr double kFarewell = 1;    // that pass between a rank's words and the end of all, so that others come to theirs
constexpr unsigned kLongest = 15;  // in which MPI must have ended this process

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Ranks write into one stream: each its line in one piece.
void say(const std::string& who, const std::string& message) {
  std::fflush(stdout);
  const std::string line = concat(who, who.empty() ? "" : ": ", "octet: ", message, "\n");
  if (::write(STDERR_FILENO, line.data(), line.size()) < 0) std::perror("octet");
}

}  // namespace

std::string name_of_rank(const Host& host) {
  return host.size() > 1 ? concat("rank ", host.rank(), " on ", machine_name()) : "";
}

uint64_t word_of(const std::string& message) {
  static const std::regex figures("[0-9][0-9.,]* (B|KiB|MiB|GiB|TiB|ms|s)\\b");
  return hash(std::regex_replace(message, figures, "# $1"));
}

void end_job(Host& host, const std::string& message, int exit_code) noexcept {
  if (host.size() == 1 || host.shares_memory()) {
    say("", message);
    return host.abort(exit_code);
  }
  std::signal(SIGALRM, SIG_DFL);
  ::alarm(kLongest);
  const uint64_t word = word_of(message);
  const auto speak = [&] { say(name_of_rank(host), message); };
  if (host.rank() == 0) speak();
  host.tell_failure(word);
  if (host.rank() == 0) host.hears_failure(word, kFarewell);  // nobody speaks for rank 0, but the others hear of it
  else if (host.hears_failure(word, kPatience)) {
    sleep_for(kPatience + kFarewell);  // who speaks for this rank ends the job, and may itself first wait for rank 0
  } else {
    speak();
    sleep_for(kFarewell);
  }
  host.abort(exit_code);
}

void say_alone(const std::string& message) noexcept {
  const int rank = launched_rank();
  if (rank > 0) sleep_for(kPatience);
  say(rank > 0 ? concat("rank ", rank, " on ", machine_name()) : "", message);
}

double turn_of(int rank) { return 0.5 * std::min(rank, 20); }

}  // namespace octet
