#include "base/log.h"

#include <fcntl.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>

#include "base/progress.h"

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
  explicit SplitSink(LogSetup::Readers readers) : readers_(readers) {
    if (readers_ == LogSetup::Readers::may_leave) std::signal(SIGPIPE, SIG_IGN);
  }
  void log(const spdlog::details::log_msg& message) override {
    if (message.level >= spdlog::level::warn) return err_.log(message);
    errno = 0;
    out_.log(message);
    if (readers_ == LogSetup::Readers::may_leave && errno == EPIPE && std::ferror(stdout)) drop_output();
  }
  void flush() override { out_.flush(), err_.flush(); }
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}  // each stream has its own pattern
  void set_pattern(const std::string&) override {}
  void set_patterns(const std::string& prefix) {
    // A line that replaces a progress bar on a terminal clears it first; the bar is drawn again below. mpirun gives its
    // ranks a terminal for standard output, wherever that goes, but none for standard error, and so no bar.
    const std::string clear = draws_bars() ? "\r\033[K" : "";
    out_.set_pattern((isatty(STDOUT_FILENO) ? clear : "") + prefix + "%v");
    err_.set_pattern(clear + prefix + "%l: %v");
  }

 private:
  // Not by closing it: the next file opened would get its descriptor.
  void drop_output() {
    const int none = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (none < 0 || ::dup2(none, STDOUT_FILENO) < 0) return;
    ::close(none);
    std::clearerr(stdout);
    std::fputs("octet: nobody reads standard output any more: the run goes on without its lines\n", stderr);
  }

  const LogSetup::Readers readers_;
  spdlog::sinks::stdout_sink_mt out_;
  spdlog::sinks::stderr_sink_mt err_;
};

}  // namespace

void start_logging(const LogSetup& setup) {
  auto sink = std::make_shared<SplitSink>(setup.readers);
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
