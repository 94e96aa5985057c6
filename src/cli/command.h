#pragma once
// A command of `octet`: its arguments, its help and its function. One file each; command.cpp lists them.
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "host/host.h"

namespace octet {

// What a command's run returns besides 0. Errors that it throws have a code of their own (base/check.h): 2, the input
// is wrong; 3, a fault of the system; 1, training only skipped steps. help.cpp tells users the same.
inline constexpr int kCheckFailed = 1;    // verify: beyond tolerance; inspect: a checksum does not match
inline constexpr int kEndedBySignal = 4;  // train: saved and stopped by a signal before its last step

struct OptionSpec {
  const char* name;
  const char* value;  // "N", what stands for its value in help; "" for a switch
  const char* help;
  const char* otherwise = "";  // its value where it is not given
  bool repeats = false;        // takes all words up to the next option, and may be given again
};

class Arguments;
struct Command {
  const char *name, *usage, *summary;
  std::vector<OptionSpec> options;
  const char* more;                         // notes and examples
  int (*run)(const Arguments&, Host* mpi);  // mpi: the ranks of mpirun; null when started alone. Returns the exit code.
  // Under mpirun: not at all, on rank 0 only, or on all ranks together.
  enum class Runs : uint8_t { alone, on_rank_0, on_ranks } runs = Runs::alone;
};

// The words after a command, by option. Unknown or missing ones are an InputError.
class Arguments {
 public:
  Arguments(const Command& command, const std::vector<std::string>& words);
  bool has(const std::string& option) const;
  std::string text(const std::string& option) const;  // as given last, or its `otherwise`
  int64_t integer(const std::string& option, int64_t least, int64_t most = INT64_MAX) const;
  double number(const std::string& option) const;
  std::vector<std::string> all(const std::string& option) const;    // of one that repeats
  const std::vector<std::string>& words() const { return words_; }  // that belong to no option
  void expect_words(size_t least, size_t most) const;
  [[noreturn]] void refuse(const std::string& why) const;  // and points to the command's help

 private:
  const OptionSpec& spec(const std::string& option) const;
  const Command& command_;
  std::vector<std::pair<std::string, std::string>> given_;
  std::vector<std::string> words_;
};

// Splits the words into leading ones and the section.key=value that follow.
struct Words {
  std::vector<std::string> leading, changes;
};
Words split_changes(const std::vector<std::string>& words);

std::vector<Command> commands();
int run_command(const std::vector<std::string>& words, Host* mpi);  // of the whole command line

Command train_command();
Command plan_command();
Command tokenizer_command();
Command tokenize_command();
Command convert_command();
Command import_command();
Command export_command();
Command inspect_command();
Command verify_command();
Command eval_command();
Command generate_command();
Command bench_command();
Command completion_command();
Command help_command();
std::string general_help();
std::string help_of(const Command& command);

}  // namespace octet
