#pragma once
// Progress of a long job: on a terminal a bar with the time left, redrawn in place; elsewhere an occasional line. Also
// human-readable numbers.
#include <chrono>
#include <cstdint>
#include <string>

namespace octet {

std::string human_bytes(double bytes);       // "512 B", "1.5 KiB", "23.4 GiB"
std::string human_count(double count);       // "950", "12.3k", "6.74B"
std::string human_duration(double seconds);  // "0.45 s", "12 s", "3m 05s", "2h 07m", "4d 02h"
std::string with_commas(int64_t n);          // "6,738,415,616"

bool draws_bars();  // whether standard error is a terminal that can be drawn on

struct ProgressSetup {
  std::string what;          // "tokenizing"
  int64_t total = 0;         // 0: unknown
  int64_t done = 0;          // already done at the start: the rate counts from here
  std::string unit;          // "B": amounts as bytes; else a count with this word
  bool shown = true;         // false: silent (ranks other than 0, log.progress false)
  double line_seconds = 10;  // between plain lines
};

class Progress {  // not for several threads at once
 public:
  explicit Progress(ProgressSetup setup);
  ~Progress();  // clears the bar; without finish(), nothing more is said
  Progress(const Progress&) = delete;

  void update(int64_t done, const std::string& note = "");  // cheap: draws at most ten times a second
  void finish(const std::string& note = "");                // one last line
  std::string line(int64_t done, double seconds, const std::string& note) const;  // what a plain line says
  std::string bar(int64_t done, double seconds, const std::string& note, int columns) const;

 private:
  using Clock = std::chrono::steady_clock;
  double seconds_since(Clock::time_point t) const;
  ProgressSetup setup_;
  Clock::time_point start_, drawn_;
  int64_t done_ = 0;
  bool terminal_ = false, drawn_once_ = false;
};

}  // namespace octet
