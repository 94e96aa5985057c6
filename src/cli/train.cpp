// octet train: a run, or with --dry-run its plan.

#include "base/log.h"
#include "cli/plan.h"
#include "cli/ranks.h"

namespace octet {
namespace {

int train(const Arguments& arguments, Host* mpi) {
  Words words = split_changes(arguments.words());
  if (words.leading.size() != 1) arguments.refuse("give one config file, followed by section.key=value");
  if (arguments.has("resume")) words.changes.push_back("checkpoint.resume=" + arguments.text("resume"));
  const RunConfig config = load_config(words.leading[0], words.changes);
  const int64_t ranks = count_ranks(arguments, mpi);
  if (arguments.has("dry-run")) return mpi && mpi->rank() ? 0 : show_plan(arguments, config, ranks);
  for (const char* option : {"json", "target", "local-ranks"})
    if (arguments.has(option)) arguments.refuse(concat("--", option, " needs --dry-run"));

  require_training(config);
  validate(config, ranks);
  log_as(config, mpi, LogSetup::Readers::may_leave);
  const Engine& engine = choose_engine(config);
  const Planner planner = planner_for(target_of(engine, config), int(ranks));
  TrainResult result;
  on_ranks(mpi, ranks, [&](Host& host) {
    const TrainResult mine = engine.train(with_shard_degree(config, host, engine, planner), host, planner);
    if (host.rank() == 0 || mpi) result = mine;
  });
  if (result.end != TrainResult::End::signalled) return 0;
  log_info("ended by a signal after step ", result.step,
           result.checkpoint.empty() ? "; nothing was saved: checkpoint.dir is empty"
                                     : "; the same command with --resume auto continues");
  return kEndedBySignal;
}

}  // namespace

Command train_command() {
  std::vector<OptionSpec> options{
      {"resume", "auto|PATH|none",
       "continue from the newest checkpoint, from this one (or a run's newest), or start anew", "auto"},
      {"dry-run", "", "print the plan instead of running; needs neither GPU nor data"}};
  for (const OptionSpec& o : plan_options(kRanksOption)) options.push_back(o);
  return {
      .name = "train",
      .usage = "CONFIG.json [section.key=value ...] [OPTIONS]",
      .summary = "train a model, or continue training it",
      .options = options,
      .more =
          "SIGTERM, SIGINT, SIGUSR1 and SIGHUP (a closed terminal) save a checkpoint and stop the run with exit\n"
          "code 4; a second SIGTERM or SIGINT stops it at once. Under nohup, SIGHUP is ignored. SIGUSR2 saves a\n"
          "checkpoint, and the run goes on. Any rank takes them; to mpirun send SIGUSR1 or SIGUSR2, which it hands\n"
          "on: a second after SIGTERM or SIGINT (Ctrl-C) it kills the ranks.\n"
          "\n"
          "A run that began with --resume at a checkpoint outside its checkpoint.dir, such as an import, is continued\n"
          "from its own newest one by the same command; --resume of a checkpoint inside goes back to that one.\n"
          "\n"
          "  octet train configs/tiny_llama.json\n"
          "  octet train configs/llama_1b.json training.steps=1000 schedule.lr=2e-4\n"
          "  octet train configs/llama2_7b.json --dry-run --target h200 --ranks 8\n"
          "  mpirun -np 8 octet train configs/llama2_7b.json parallel.zero_stage=3\n"
          "  octet train configs/tiny_llama.json --resume out/tiny_llama/step-00000200\n",
      .run = train,
      .runs = Command::Runs::on_ranks};
}

}  // namespace octet
