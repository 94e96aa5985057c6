#pragma once
// This test program starts itself, or octet, under mpirun.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/check.h"
#include "host/host.h"

namespace octet {

inline bool built_with_mpi() {  // ranks that cannot talk are refused either way, by different advice
  setenv("SLURM_STEP_NUM_TASKS", "2", 1);
  std::string advice;
  try {
    mpi_host(nullptr, nullptr);
  } catch (const InputError& e) { advice = e.what(); }
  unsetenv("SLURM_STEP_NUM_TASKS");
  return advice.find("without MPI: install") == std::string::npos;
}

// The exit code of the disabled test Child.DISABLED_`name` of this file on `ranks` processes.
inline int under_mpirun(int ranks, const std::string& name, const std::string& environment = "") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const int status = std::system(concat(environment, " timeout 300 mpirun -np ", ranks, " --oversubscribe '", self,
                                        "' --gtest_also_run_disabled_tests --gtest_filter=Child.DISABLED_", name,
                                        " >mpi_", name, ".log 2>&1")
                                     .c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// What `ranks` consecutive ranks run, in `folder` ("": where mpirun was started).
struct Part {
  int ranks;
  std::vector<std::string> words;
  std::string folder = "";
};

// Starts the ranks of all parts as one job. A shell in each takes the command of its rank: the form of mpirun itself,
// "-np 1 A : -np 1 B", is a segmentation fault in Debian 13's (5.0.7).
inline std::vector<std::string> mpirun(const std::vector<Part>& parts) {
  const auto quoted = [](const std::string& word) {
    std::string safe;
    for (const char c : word) safe += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return "'" + safe + "' ";
  };
  std::string script;
  int ranks = 0;
  for (const Part& part : parts) {
    ranks += part.ranks;
    script += concat("if [ $OMPI_COMM_WORLD_RANK -lt ", ranks, " ]; then ");
    if (!part.folder.empty()) script += "cd " + quoted(part.folder) + "&& ";
    script += "exec ";
    for (const std::string& word : part.words) script += quoted(word);
    script += "; fi\n";
  }
  return {"mpirun", "--oversubscribe", "-np", std::to_string(ranks), "bash", "-c", script};
}

struct Mpi : testing::Test {
  void SetUp() override {
    for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) setenv(name, "1", 0);
    setenv("OMP_NUM_THREADS", "1", 1);  // the ranks share few cores
    setenv("OMP_WAIT_POLICY", "passive", 1);
    if (!built_with_mpi()) GTEST_SKIP() << "built without MPI";
    if (std::system("mpirun --version >mpi_version.log 2>&1") != 0) GTEST_SKIP() << "there is no mpirun";
  }
};

// What the started processes do stands in disabled tests, so that nobody runs them alone.
inline std::unique_ptr<Host> started() {
  auto host = mpi_host(nullptr, nullptr);
  if (!host) throw Error("not started by mpirun");
  return host;
}

}  // namespace octet
