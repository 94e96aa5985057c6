#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

namespace octet {
namespace {

constexpr const char* kLogger = "octet";

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

// Standard output up to info, standard error from warnings on.
class SplitSink final : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    if (message.level >= spdlog::level::warn) err_.log(message);
    else out_.log(message);
  }
  void flush() override { out_.flush(), err_.flush(); }
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}  // each stream has its own pattern
  void set_pattern(const std::string&) override {}
  void set_patterns(const std::string& prefix) {
    // A line that replaces a progress bar on a terminal clears it first; the bar is drawn again below.
    const auto clear = [](int stream) { return isatty(stream) ? "\r\033[K" : ""; };
    out_.set_pattern(clear(STDOUT_FILENO) + prefix + "%v");
    err_.set_pattern(clear(STDERR_FILENO) + prefix + "%l: %v");
  }

 private:
  spdlog::sinks::stdout_sink_mt out_;
  spdlog::sinks::stderr_sink_mt err_;
};

}  // namespace

void start_logging(const LogSetup& setup) {
  auto sink = std::make_shared<SplitSink>();
  sink->set_patterns(setup.ranks > 1 ? concat("rank ", setup.rank, ": ") : "");
  auto logger = std::make_shared<spdlog::logger>(kLogger, sink);
  const LogLevel level = setup.rank == 0 ? setup.level : std::max(setup.level, LogLevel::warning);
  logger->set_level(level_of(level));
  logger->flush_on(spdlog::level::debug);  // every line is seen at once, also through a pipe
  spdlog::set_default_logger(std::move(logger));
}

void log_line(LogLevel level, const std::string& text) {
  static const bool ready = [] {  // messages before start_logging() have the same format
    if (spdlog::default_logger_raw()->name() != kLogger) start_logging({});
    return true;
  }();
  if (ready) spdlog::default_logger_raw()->log(level_of(level), std::string_view(text));
}

}  // namespace octet
