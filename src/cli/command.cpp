// The list of commands, and the way from a command line to one of them.
#include "cli/command.h"

#include <cstdio>

#include "base/json.h"

namespace octet {

std::vector<Command> commands() {
  return {train_command(),    plan_command(),   tokenizer_command(),  tokenize_command(), convert_command(),
          import_command(),   export_command(), inspect_command(),    verify_command(),   eval_command(),
          generate_command(), bench_command(),  completion_command(), help_command()};
}

int run_command(const std::vector<std::string>& words, Host* mpi) {
  const bool first = !mpi || mpi->rank() == 0;
  if (words.empty()) {
    if (first) std::fputs(general_help().c_str(), stderr);
    return 2;
  }
  std::string name = words[0];
  if (name == "--help" || name == "-h") name = "help";
  if (name == "--version") {
    if (first) std::printf("octet %s\n", OCTET_VERSION);
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    names.push_back(command.name);
    if (name != command.name) continue;
    const std::vector<std::string> rest(words.begin() + 1, words.end());
    for (const std::string& word : rest)
      if (word == "--help" || word == "-h") {
        if (first) std::fputs(help_of(command).c_str(), stdout);
        return 0;
      }
    if (command.runs == Command::Runs::alone && mpi && mpi->size() > 1)
      bad_input("octet ", name, " runs as one process, and ", mpi->size(),
                " ranks were started: run it without mpirun, or with srun -n 1");
    if (command.runs == Command::Runs::on_rank_0 && !first) return 0;
    return command.run(Arguments(command, rest), mpi);
  }
  names.insert(names.end(), {"--help", "--version"});
  bad_input("unknown command ", name.substr(0, 80), did_you_mean(name, names), "\nSee octet help");
}

}  // namespace octet
