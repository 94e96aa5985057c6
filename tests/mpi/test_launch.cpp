// octet under mpirun as a user starts it: machines (here two of two ranks, by OCTET_LOCAL_SIZE) shard within and
// replicate across unless told otherwise, and the losses are those of one rank.
#include "cli/tiny_run.h"
#include "mpi/mpirun.h"

namespace octet {
namespace {

std::vector<std::string> words(const TinyRun& tiny, const std::string& machine, const std::vector<std::string>& more) {
  std::vector<std::string> all{"env", "OCTET_LOCAL_SIZE=" + machine, "mpirun", "-np", "4", "--oversubscribe"};
  std::vector<std::string> changes{"training.global_batch_size=4", "training.micro_batch_size=1", "schedule.lr=3e-3",
                                   "parallel.check_every=1"};
  changes.insert(changes.end(), more.begin(), more.end());
  for (const std::string& word : tiny.words(changes)) all.push_back(word);
  return all;
}

TEST_F(Mpi, MachinesShardWithinUnlessToldOtherwise) {
  const TinyRun tiny;
  expect_done(tiny.train(
      {"training.micro_batch_size=1", "schedule.lr=3e-3", "checkpoint.dir=", "log.file=" + tiny.path("one.jsonl")}));
  const std::vector<double> one = tiny.losses("one.jsonl");
  ASSERT_EQ(one.size(), 10u);
  for (const auto& [machine, changes, said] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"2", "parallel.zero_stage=1", ", stage 1 among 2 ranks"},
           {"2", "parallel.zero_stage=3", ", stage 3 among 2 ranks"},
           {"1", "parallel.zero_stage=2", ", stage 2 among 1 rank"},
           {"2", "parallel.shard_degree=4", ", stage 1 among 4 ranks"},
           {"4", "parallel.zero_stage=2", ", stage 2 among 4 ranks"},
           {"3", "parallel.zero_stage=2", ", stage 2 among 4 ranks"}}) {  // machines of unequal size
    const std::string log = "log.file=" + tiny.path("many.jsonl");
    std::filesystem::remove(tiny.path("many.jsonl"));
    expect_done(run(words(tiny, machine, {changes, "checkpoint.dir=", log})), {"4 ranks", said, "step 10/10"});
    const std::vector<double> many = tiny.losses("many.jsonl");
    ASSERT_EQ(many.size(), 10u);
    for (size_t i = 0; i < 10; ++i) EXPECT_NEAR(many[i], one[i], 1e-6 * one[i]) << changes << " step " << i + 1;
  }
}

// Saved by two machines that shard within, resumed by one rank and by one machine of four.
TEST_F(Mpi, ARunGoesOnOnOtherMachines) {
  const TinyRun whole, parts;
  const std::vector<std::string> usual{"training.micro_batch_size=1", "schedule.lr=3e-3"};
  expect_done(whole.train(usual));
  const std::vector<double> want = whole.losses();
  expect_done(run(words(parts, "2", {"training.stop_after=3", "parallel.zero_stage=3"})), {"step 3/10"});
  expect_done(parts.train({"training.micro_batch_size=2", "schedule.lr=3e-3", "training.stop_after=3"}),
              {"resumed from", "step 6/10"});
  expect_done(run(words(parts, "4", {"parallel.zero_stage=2"})), {"resumed from", "step 10/10"});
  const std::vector<double> got = parts.losses();
  ASSERT_EQ(got.size(), 10u);
  for (size_t i = 0; i < 10; ++i) EXPECT_NEAR(got[i], want[i], 1e-6 * want[i]) << "step " << i + 1;
}

// mpirun's ranks have a terminal for standard output: each line in a log file began with the codes that clear a bar.
TEST_F(Mpi, LinesOfARunHaveNoControlCodes) {
  const TinyRun tiny;
  const Ran r = run(words(tiny, "4", {"checkpoint.dir=", "training.stop_after=1"}));
  expect_done(r, {"rank 0: step 1/10"});
  EXPECT_EQ(r.out.find_first_of("\r\x1b"), std::string::npos) << r;
  EXPECT_EQ(r.err.find('\x1b'), std::string::npos) << r;
}

// As MPICH's mpirun starts the ranks of a program of Open MPI: each would be a run of its own, in the same folder.
TEST_F(Mpi, RanksThatTheLibraryDoesNotKnowOfAreRefused) {
  expect_refused(run({"env", "PMI_SIZE=2", "PMI_RANK=0", OCTET_BINARY, "plan", CONFIGS "/tiny_llama.json"}),
                 {"2 ranks were started", "it sees 1", "its own mpirun"});
}

TEST_F(Mpi, RanksOfSrunWithoutMpiAreRefusedInWordsThatFitEachCommand) {
  for (const char* command : {"train", "tokenize"})
    expect_refused(run({"env", "SLURM_STEP_NUM_TASKS=8", OCTET_BINARY, command}),
                   {"srun started 8 ranks without MPI", "run alone", "srun --mpi=pmix", "srun -n 1"});
}

// Open MPI would send its few messages through the EFA cards, which p5-mpirun leaves to NCCL. srun: a stand-in.
TEST(Launch, UnderSlurmMpiIsToldWhatMpirunTellsIt) {
  const Scratch bin;
  const std::filesystem::path srun = bin.write("srun", "#!/bin/sh\necho \"$*\"\nenv\n");
  std::filesystem::permissions(srun, std::filesystem::perms::owner_all);
  const Ran r = run({"env", concat("PATH=", srun.parent_path().string(), ":", std::getenv("PATH")),
                     "SLURM_SUBMIT_DIR=" CONFIGS "/..", CONFIGS "/../scripts/launch/p5.sbatch", "CONFIG", "a.b=c d"});
  expect_done(r, {"build/octet train CONFIG a.b=c d\n", "\nOMPI_MCA_pml=ob1\n", "\nOMPI_MCA_btl=tcp,self\n",
                  "\nOMPI_MCA_btl_tcp_if_exclude=lo,docker0\n", "\nFI_PROVIDER=efa\n"});
}

}  // namespace
}  // namespace octet
