#include "base/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace octet {
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

// Three digits: 9.87, 98.7, 987.
std::string three_digits(double x) { return format(x < 9.995 ? "%.2f" : x < 99.95 ? "%.1f" : "%.0f", x); }

int terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string human_bytes(double bytes) {
  if (std::abs(bytes) < 1024) return format("%.0f B", bytes);
  const char* unit = " KiB";
  bytes /= 1024;
  for (const char* larger : {" MiB", " GiB", " TiB", " PiB"}) {
    if (std::abs(bytes) < 1023.5) break;  // 1023.5 would be shown as 1024
    bytes /= 1024, unit = larger;
  }
  return (bytes < 0 ? "-" : "") + three_digits(std::abs(bytes)) + unit;
}

std::string human_count(double count) {
  if (std::abs(count) < 999.5) return count == std::floor(count) ? format("%.0f", count) : three_digits(count);
  const char* unit = "k";
  count /= 1000;
  for (const char* larger : {"M", "B", "T", "P", "E"}) {
    if (std::abs(count) < 999.5) break;
    count /= 1000, unit = larger;
  }
  return (count < 0 ? "-" : "") + three_digits(std::abs(count)) + unit;
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 0.9995e-3) return format("%.0f us", seconds * 1e6);
  if (seconds < 0.9995) return three_digits(seconds * 1e3) + " ms";
  if (seconds < 9.95) return format("%.1f s", seconds);
  const auto s = int64_t(std::llround(seconds));
  if (s < 60) return format("%d s", int(s));
  if (s < 3600) return format("%dm %02ds", int(s / 60), int(s % 60));
  if (s < 86400) return format("%dh %02dm", int(s / 3600), int(s / 60 % 60));
  return format("%lldd %02dh", static_cast<long long>(s / 86400), int(s / 3600 % 24));
}

std::string with_commas(int64_t n) {
  std::string text = std::to_string(n);
  for (auto at = int64_t(text.size()) - 3; at > (n < 0 ? 1 : 0); at -= 3) text.insert(size_t(at), ",");
  return text;
}

bool draws_bars() {
  const char* kind = std::getenv("TERM");
  return isatty(STDERR_FILENO) && kind && std::string_view(kind) != "dumb";
}

Progress::Progress(ProgressSetup setup)
    : setup_(std::move(setup)), start_(Clock::now()), drawn_(start_), done_(setup_.done) {
  terminal_ = setup_.shown && draws_bars();
}

Progress::~Progress() {
  if (terminal_ && drawn_once_) std::fputs("\r\033[K", stderr), std::fflush(stderr);
}

double Progress::seconds_since(Clock::time_point t) const {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

std::string Progress::line(int64_t done, double seconds, const std::string& note) const {
  const bool bytes = setup_.unit == "B";
  const auto amount = [&](double x) { return bytes ? human_bytes(x) : human_count(x); };
  const std::string unit = bytes || setup_.unit.empty() ? "" : " " + setup_.unit;
  std::string text = setup_.what + ": " + amount(double(done));
  if (setup_.total > 0) text += " of " + amount(double(setup_.total));
  text += unit;
  if (setup_.total > 0) text += format(" (%.0f %%)", std::floor(100 * double(done) / double(setup_.total)));
  const double rate = seconds > 0 ? double(done - setup_.done) / seconds : 0;
  if (rate > 0) text += ", " + amount(rate) + unit + "/s";
  if (rate > 0 && done < setup_.total) text += ", " + human_duration(double(setup_.total - done) / rate) + " left";
  return note.empty() ? text : text + ", " + note;
}

std::string Progress::bar(int64_t done, double seconds, const std::string& note, int columns) const {
  std::string text = line(done, seconds, note);
  const int room = columns - 1 - int(text.size()) - 3;  // "[", "] " and the cursor
  if (setup_.total > 0 && room >= 10) {
    const int width = std::min(room, 40);
    const double share = std::clamp(double(done) / double(setup_.total), 0.0, 1.0);
    const auto filled = size_t(std::floor(share * width));
    text = "[" + std::string(filled, '=') + std::string(size_t(width) - filled, ' ') + "] " + text;
  }
  return text.substr(0, size_t(std::max(columns - 1, 1)));
}

void Progress::update(int64_t done, const std::string& note) {
  done_ = done;
  if (!setup_.shown || seconds_since(drawn_) < (terminal_ ? 0.1 : setup_.line_seconds)) return;
  drawn_ = Clock::now(), drawn_once_ = true;
  const double seconds = seconds_since(start_);
  if (terminal_) std::fprintf(stderr, "\r\033[K%s", bar(done, seconds, note, terminal_columns()).c_str());
  else std::fprintf(stderr, "%s\n", line(done, seconds, note).c_str());
  std::fflush(stderr);
}

void Progress::finish(const std::string& note) {
  if (!setup_.shown) return;
  const double seconds = seconds_since(start_);
  const std::string took = "took " + human_duration(seconds);
  const std::string last = line(done_, seconds, note.empty() ? took : note + ", " + took);
  std::fprintf(stderr, "%s%s\n", terminal_ ? "\r\033[K" : "", last.c_str());
  std::fflush(stderr);
  drawn_once_ = false;
}

}  // namespace octet
