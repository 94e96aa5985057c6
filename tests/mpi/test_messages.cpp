// What all ranks fail of is said once, by rank 0; what a machine's ranks fail of, by the first of them; what a rank
// fails of alone, by that rank. The exit code is that of the failure.
#include "cli/tiny_run.h"
#include "host/launch.h"
#include "mpi/mpirun.h"

namespace octet {
namespace {

struct Messages : Mpi {
  static void SetUpTestSuite() { tiny = new TinyRun; }
  static void TearDownTestSuite() { delete tiny; }

  using Words = std::vector<std::string>;
  static Words training(Words more) {
    more.insert(more.begin(), {"checkpoint.dir=", "log.file=", "training.micro_batch_size=1"});
    return tiny->words(std::move(more));
  }
  static Ran start(const std::vector<Part>& parts, const std::string& machine = "4") {
    Words all{"env", "OCTET_LOCAL_SIZE=" + machine};
    for (std::string& word : mpirun(parts)) all.push_back(std::move(word));
    return run(all);
  }
  // Ranks whose line "rank r on MACHINE: octet: … text" stands there, in the order of the lines.
  static std::string speakers(const Ran& r, const std::string& text) {
    std::string ranks;
    std::istringstream lines(r.err);
    for (std::string line; std::getline(lines, line);) {
      std::erase(line, '\0');  // Open MPI 5 ends its own texts with one
      const size_t who = line.find(" on " + machine_name() + ": octet: ");
      if (!has(line, text)) continue;
      EXPECT_TRUE(line.starts_with("rank ") && who != std::string::npos) << line;
      ranks += line.substr(5, who - 5);
    }
    return ranks;
  }
  static inline TinyRun* tiny = nullptr;
};

TEST_F(Messages, WhatAllRanksFailOfIsSaidOnceByRank0) {
  write_file(tiny->path("file"), "");
  const std::vector<std::tuple<Words, int, std::string>> cases{
      {training({"trainin.steps=3"}), 2, "did you mean training?"},
      {training({"data.train=no.tokens"}), 2, "no.tokens"},
      {training({"--resume", "nowhere"}), 2, "nowhere: no such checkpoint"},
      {training({"checkpoint.dir=" + tiny->path("file/run")}), 2, "file/run"},
      {training({"schedule.lr=1e30", "training.max_skipped=2", "optimizer.clip=0"}), 1, "were all skipped"},
      {{OCTET_BINARY, "trian"}, 2, "unknown command trian"},
      {{OCTET_BINARY, "inspect", tiny->path("train.tokens")}, 2, "octet inspect runs as one process"},
  };
  for (const auto& [words, code, text] : cases) {
    const Ran r = start({{4, words}});
    EXPECT_EQ(r.code, code) << r;
    EXPECT_EQ(speakers(r, text), "0") << r;
  }
}

TEST_F(Messages, WhatOneRankFailsOfIsSaidByThatRank) {
  for (const auto& [change, text] :
       std::vector<std::pair<std::string, std::string>>{{"data.train=no.tokens", "no.tokens"},
                                                        {"trainin.steps=3", "did you mean"},
                                                        {"training.steps=11", "is 11 here"}}) {
    const Ran r = start({{2, training({})}, {1, training({change})}, {1, training({})}});
    EXPECT_EQ(r.code, 2) << r;
    EXPECT_EQ(speakers(r, text), "2") << r;
    EXPECT_EQ(speakers(r, ": octet: "), "2") << r;  // and nobody says anything else
  }
}

TEST_F(Messages, WhatAMachineFailsOfIsSaidByItsFirstRank) {
  const Ran r = start({{2, training({})}, {2, training({"data.train=no.tokens"})}}, "2");
  EXPECT_EQ(r.code, 2) << r;
  EXPECT_EQ(speakers(r, "no.tokens"), "2") << r;
}

TEST_F(Messages, TwoThatFailOfDifferentThingsBothSpeak) {
  const Ran r = start({{1, training({"trainin.steps=3"})}, {2, training({})}, {1, training({"dat.steps=3"})}});
  EXPECT_EQ(r.code, 2) << r;
  EXPECT_EQ(speakers(r, "did you mean training"), "0") << r;
  EXPECT_EQ(speakers(r, "did you mean data"), "3") << r;
}

TEST_F(Messages, WhatIsAskedOfTheProgramIsAnsweredOnce) {
  for (const Words& words : {Words{"--version"}, Words{"help", "plan"}, Words{"train", "--help"}}) {
    Words all{OCTET_BINARY};
    all.insert(all.end(), words.begin(), words.end());
    const Ran r = start({{3, all}});
    expect_done(r);
    EXPECT_EQ(r.out, run(all).out);
  }
}

}  // namespace
}  // namespace octet
