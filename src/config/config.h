#pragma once
// The configuration of a run: a JSON file (comments with // are allowed) whose sections are the structs below, changed
// by section.key=value on the command line. Anything wrong is an InputError that names file and key.
#include <string>
#include <string_view>
#include <vector>

#include "config/model.h"
#include "config/precision.h"
#include "config/system.h"
#include "config/training.h"

namespace octet {

enum class DeviceKind { automatic, cuda, cpu };

struct RunConfig : Section {
  RunConfig() : Section("") {}
  ModelConfig model;
  DataConfig data;
  TrainingConfig training;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  PrecisionConfig precision;
  Fp8Config fp8;
  ParallelConfig parallel;
  MemoryConfig memory;
  CheckpointConfig checkpoint;
  LogConfig log;
  Choice<DeviceKind> device{this,
                            "device",
                            DeviceKind::automatic,
                            "auto: a GPU where one is found, else the CPU",
                            {{"auto", DeviceKind::automatic},
                             {"cuda", DeviceKind::cuda},
                             {"cpu", DeviceKind::cpu},
                             {"gpu", DeviceKind::cuda, false}}};

  std::string where = "config";      // the file it was read from, for messages
  std::vector<Section*> sections();  // all but the model, which is not a Section; the run's own options last
};

// overrides: "section.key=value", the value as JSON or as bare text; later ones win. Derived defaults are filled in and
// what is independent of the number of ranks is validated.
RunConfig load_config(const std::string& path, const std::vector<std::string>& overrides = {});
RunConfig parse_config(std::string_view text, const std::string& where, const std::vector<std::string>& overrides = {});
json resolved(const RunConfig& config);  // every option with its value: as a file, it gives the same config

// The cross-checks between options. ranks 0: not known yet, as when load_config makes them; run again when known.
void validate(const RunConfig& config, int64_t ranks = 0);
// A line for each option that has no effect because of the value of another one, and for a schedule that the run is
// too short for. ranks 0: not known.
std::vector<std::string> warnings_of(const RunConfig& config, int64_t ranks = 0);
void require_training(const RunConfig& config);  // data and a length, which a plan or a benchmark does not need

int64_t shard_degree(const RunConfig& config, int64_t ranks);  // ranks that share slices out: 1 in stage 0
int64_t tokens_per_step(const RunConfig& config);
int64_t total_steps(const RunConfig& config);  // 0 when neither steps nor tokens are given
// How far a run has got, perhaps with batches of another size.
struct Done {
  int64_t step = 0, samples = 0, tokens = 0;  // samples: sequences, of all ranks as the tokens
};
// Where the run ends: at training.steps, or as many steps on as training.tokens leaves room for.
int64_t total_steps(const RunConfig& config, const Done& done);
double learning_rate(const RunConfig& config, const Done& done);  // of the next step
int64_t micro_steps(const RunConfig& config, int64_t ranks);      // micro-batches of a step on each rank

std::vector<OptionLine> all_options();                    // with their defaults, the model's included
std::string option_table(std::string_view section = "");  // for `octet help`: all, or those of one section

}  // namespace octet
