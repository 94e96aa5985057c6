// Recognises Open MPI, MPICH and Slurm by the variables that they set.
#include "host/launch.h"

#include <unistd.h>

#include <array>
#include <cstdlib>

#include "base/check.h"

namespace octet {
namespace {

int positive(const char* variable) {  // its value, 0 when it is not set
  const char* text = std::getenv(variable);
  if (!text || !*text) return 0;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end || value < 1 || value > 1'000'000)
    bad_input("environment variable ", variable, " is '", text, "', which is not a number of ranks; unset it");
  return int(value);
}

}  // namespace

Launch launch() {
  for (const char* size : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const int ranks = positive(size)) return {ranks, true};
  const int tasks = positive("SLURM_STEP_NUM_TASKS");  // of srun; 1 in a batch script
  const bool pmi = std::getenv("PMIX_RANK") || std::getenv("PMI_RANK") || std::getenv("PMI_FD");
  return {tasks ? tasks : 1, pmi};
}

int launched_rank() {
  for (const char* rank : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* text = std::getenv(rank)) return std::atoi(text);
  return 0;
}

std::string machine_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "a machine without a name";
}

int forced_local_size() { return positive("OCTET_LOCAL_SIZE"); }

}  // namespace octet
