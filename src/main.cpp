// octet: argv to command; errors to messages and exit codes.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <new>
#include <system_error>

#include "base/bus_errors.h"
#include "base/check.h"
#include "base/memory.h"
#include "base/refused.h"
#include "cli/command.h"
#include "host/last_words.h"
#include "host/signals.h"

namespace {

int run(const std::vector<std::string>& words, octet::Host* mpi) {
  try {
    return octet::run_command(words, mpi);
  } catch (const std::filesystem::filesystem_error& e) {
    octet::refused_path("use", e.path1(), e.code().value());
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::resource_unavailable_try_again) throw;
    throw octet::SystemError(
        "cannot start a thread: raise the limit of addresses (ulimit -v) or of processes (ulimit -u), or lower "
        "OMP_NUM_THREADS");
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace octet;
  std::unique_ptr<Host> mpi;  // outlives a failure, to tell its rank and to end the others
  std::string message;
  int code = 3;
  restore_hangup();
  restart_frugally(argv);
  explain_bus_errors();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond ulimit -f is an error that names it, as on a full disk
  std::signal(SIGUSR2, SIG_IGN);  // asks a run to save: until its first step and after its last there is nothing to
  try {
    mpi = mpi_host(&argc, &argv);
    const int done = run({argv + 1, argv + argc}, mpi.get());
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw SystemError("cannot write to standard output");
    return done;
  } catch (const Error& e) {
    message = e.what();
    code = e.exit_code();
  } catch (const std::bad_alloc&) { message = "out of memory"; } catch (const std::exception& e) {
    message = e.what();
  }
  if (mpi) end_job(*mpi, message, code);
  else say_alone(message);
  return code;
}
