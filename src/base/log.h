#pragma once
// Messages of a run: information on standard output, warnings and errors on standard error. With several ranks each
// line begins with "rank r: ", and the ranks other than 0 print warnings and errors only.
#include <string>

#include "base/check.h"

namespace octet {

enum class LogLevel { debug, info, warning, error };

struct LogSetup {
  int rank = 0, ranks = 1;
  LogLevel level = LogLevel::info;
  // When the reader of standard output leaves (`| head`), the process ends as usual; or, where its work is worth more
  // than its messages (training), only the messages end.
  enum class Readers { needed, may_leave } readers = Readers::needed;
};
void start_logging(const LogSetup& setup);  // once, before the first message; without it: one rank, info

void log_line(LogLevel level, const std::string& text);
template <class... Parts>
void log_debug(const Parts&... parts) {
  log_line(LogLevel::debug, concat(parts...));
}
template <class... Parts>
void log_info(const Parts&... parts) {
  log_line(LogLevel::info, concat(parts...));
}
template <class... Parts>
void log_warning(const Parts&... parts) {
  log_line(LogLevel::warning, concat(parts...));
}
template <class... Parts>
void log_error(const Parts&... parts) {
  log_line(LogLevel::error, concat(parts...));
}

}  // namespace octet
